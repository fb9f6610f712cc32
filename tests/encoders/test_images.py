"""The network for images against one built by hand, and encoders one after the other."""

import pytest
import torch
from torch import nn

from setgrad.encoders import ContextItems, ImageItems, ItemWise, MLPItems, PixelCNNItems, Stacked
from setgrad.errors import OptionError, ShapeError
from setgrad.functions import DeepSetFunction
from setgrad.sets import Sets


def draw(count, *shape):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def test_it_is_the_published_network(seeded):
    with seeded(0):
        encoder = ImageItems((3, 64, 64))
    weights = dict(encoder.named_parameters())
    assert [tuple(weights[f"layers.{n}.weight"].shape) for n in (0, 2, 4)] == [
        (32, 3, 3, 3),
        (64, 32, 4, 4),
        (128, 64, 5, 5),
    ]
    assert encoder.out_dim == 256
    images = draw(5, 3, 64, 64)
    x = images
    for number in (0, 2, 4):
        convolved = nn.functional.conv2d(x, weights[f"layers.{number}.weight"], weights[f"layers.{number}.bias"], 2)
        x = convolved.clamp(min=0)
    assert x.shape == (5, 128, 5, 5)
    expected = x.amax((2, 3)) @ weights["linear.weight"].T + weights["linear.bias"]
    torch.testing.assert_close(encoder(Sets.from_lengths(images, [2, 3])), expected)


@pytest.mark.parametrize("side", [1, 8, 24, 25, 28, 33])
def test_images_of_any_size(side, seeded):
    with seeded(0):
        encoder = ImageItems((2, side, side + 3), 16)
    images = draw(4, 2, side, side + 3)
    features = encoder(Sets.from_lengths(images, [1, 0, 3]))
    assert features.shape == (4, 16)
    framed = side + 3 < 25 or side < 25
    assert any(encoder.frame) == framed
    # every image leaves a trace
    assert (features[1:] - features[:1]).abs().amax(1).min() > 1e-6


def test_a_frame_is_the_same_as_zeros_around_the_image(seeded):
    with seeded(0):
        small, large = ImageItems((1, 8, 25), 16), ImageItems((1, 25, 25), 16)
    large.load_state_dict(small.state_dict())
    images = draw(2, 1, 8, 25)
    framed = torch.zeros(2, 1, 25, 25)
    framed[:, :, 8:16] = images
    torch.testing.assert_close(small(Sets.from_lengths(images, [2])), large(Sets.from_lengths(framed, [2])))


def test_pieces_give_the_same_features_and_gradients(seeded):
    with seeded(0):
        encoder = ImageItems((1, 28, 28), 16).double()
    sets = Sets.from_lengths(draw(7, 1, 28, 28).double(), [3, 4])

    def run(chunk):
        encoder.chunk = chunk
        encoder.zero_grad()
        out = encoder(sets)
        out.square().sum().backward()
        return [out.detach(), *[p.grad.clone() for p in encoder.parameters()]]

    for whole, pieces in zip(run(7), run(3), strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-10, atol=1e-12)


def test_only_images_are_read(seeded):
    with pytest.raises(OptionError, match=r"images have shape \(channels, height, width\), but in_dim is 64"):
        ImageItems(64)
    with pytest.raises(OptionError, match="but in_dim is"):
        ImageItems((8, 8))
    with seeded(0):
        encoder = ImageItems((1, 28, 28), 16)
    with pytest.raises(ShapeError, match=r"items of shape \(1, 28, 28\).*\(28, 28\)"):
        encoder(Sets.from_lengths(draw(2, 28, 28), [2]))


def test_a_picture_is_read_by_the_network_and_by_its_pixels(seeded):
    with seeded(0):
        encoder = PixelCNNItems((1, 28, 28), 16)
    images = draw(3, 1, 28, 28)
    sets = Sets.from_lengths(images, [1, 2])
    expected = encoder.network(sets) + images.flatten(1) @ encoder.pixels.weight.T + encoder.pixels.bias
    torch.testing.assert_close(encoder(sets), expected)


def test_a_picture_tells_places_apart_that_the_network_does_not(seeded):
    with seeded(0):
        encoder = PixelCNNItems((1, 64, 64), 16)
    # The same spot, moved by the product of the three strides, where no border is near.
    images = torch.zeros(2, 1, 64, 64)
    images[0, 0, 26:28, 26:28] = images[1, 0, 26:28, 34:36] = 1
    sets = Sets.from_lengths(images, [2])
    blind, seen = encoder.network(sets), encoder(sets)
    torch.testing.assert_close(blind[0], blind[1])
    assert (seen[0] - seen[1]).norm() > 1e-2


def test_stacked_is_one_after_the_other(seeded):
    with seeded(0):
        first, then = MLPItems(3, 6), ContextItems(6, 16)
    sets = Sets.from_lengths(draw(5, 3), [2, 0, 3])
    stacked = Stacked(first, then)
    assert stacked.out_dim == 16
    torch.testing.assert_close(stacked(sets), then(sets.with_values(first(sets))))
    assert len(list(stacked.parameters())) == len(list(first.parameters())) + len(list(then.parameters()))


def test_stacked_encoders_must_fit(seeded):
    with seeded(0):
        first, context, whole = MLPItems(3, 6), ContextItems(5, 16), ItemWise(nn.Linear(6, 2), 6)
    with pytest.raises(ShapeError, match=r"gives 6 features.*shape \(5,\); make it with in_dim=6"):
        Stacked(first, context)
    assert Stacked(first, whole).out_dim == 2


def test_a_set_function_of_images_sees_the_other_images(seeded):
    with seeded(0):
        function = DeepSetFunction((1, 28, 28), Stacked(ImageItems((1, 28, 28), 8), ContextItems(8, 8)), hidden=(8,))
    images = draw(3, 1, 28, 28)
    masks = torch.tensor([[True, False, False]])
    value = function.value(Sets.from_lengths(images, [3]), masks)
    images = images.clone()
    images[2] += 1
    assert (function.value(Sets.from_lengths(images, [3]), masks) - value).abs().max() > 1e-6
