"""The image encoders against plain torch, and stacked encoders."""

import pytest
import torch
from torch import nn

from setgrad.encoders import ContextItems, ImageItems, ItemWise, MLPItems, PixelCNNItems, Stacked
from setgrad.errors import OptionError, ShapeError
from setgrad.functions import DeepSetFunction
from setgrad.sets import Sets


def random_images(count, *shape):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def test_the_layers_are_the_published_ones(seeded):
    with seeded(0):
        encoder = ImageItems((3, 64, 64))
    weights = dict(encoder.named_parameters())
    assert [tuple(weights[f"layers.{n}.weight"].shape) for n in (0, 2, 4)] == [
        (32, 3, 3, 3),
        (64, 32, 4, 4),
        (128, 64, 5, 5),
    ]
    assert encoder.out_dim == 256
    images = random_images(5, 3, 64, 64)
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
    images = random_images(4, 2, side, side + 3)
    features = encoder(Sets.from_lengths(images, [1, 0, 3]))
    assert features.shape == (4, 16)
    assert any(encoder.padding) == (side < 25)
    # Every image has features of its own.
    assert (features[1:] - features[:1]).abs().amax(1).min() > 1e-6


def test_small_images_are_padded_with_zeros(seeded):
    with seeded(0):
        small, large = ImageItems((1, 8, 25), 16), ImageItems((1, 25, 25), 16)
    large.load_state_dict(small.state_dict())
    images = random_images(2, 1, 8, 25)
    padded = torch.zeros(2, 1, 25, 25)
    padded[:, :, 8:16] = images
    torch.testing.assert_close(small(Sets.from_lengths(images, [2])), large(Sets.from_lengths(padded, [2])))


def test_chunks_give_the_same_features_and_gradients(seeded):
    with seeded(0):
        encoder = ImageItems((1, 28, 28), 16).double()
    sets = Sets.from_lengths(random_images(7, 1, 28, 28).double(), [3, 4])

    def run(chunk):
        encoder.chunk = chunk
        encoder.zero_grad()
        out = encoder(sets)
        out.square().sum().backward()
        return [out.detach(), *[p.grad.clone() for p in encoder.parameters()]]

    for whole, chunked in zip(run(7), run(3), strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-10, atol=1e-12)


def test_other_shapes_than_images_are_rejected(seeded):
    with pytest.raises(OptionError, match=r"images have shape \(channels, height, width\), but in_dim is 64"):
        ImageItems(64)
    with pytest.raises(OptionError, match="but in_dim is"):
        ImageItems((8, 8))
    with seeded(0):
        encoder = ImageItems((1, 28, 28), 16)
    with pytest.raises(ShapeError, match=r"items of shape \(1, 28, 28\).*\(28, 28\)"):
        encoder(Sets.from_lengths(random_images(2, 28, 28), [2]))


def test_pixel_cnn_adds_a_linear_map_of_the_pixels(seeded):
    with seeded(0):
        encoder = PixelCNNItems((1, 28, 28), 16)
    images = random_images(3, 1, 28, 28)
    sets = Sets.from_lengths(images, [1, 2])
    expected = encoder.network(sets) + images.flatten(1) @ encoder.pixels.weight.T + encoder.pixels.bias
    torch.testing.assert_close(encoder(sets), expected)


def test_pixel_cnn_distinguishes_positions_that_the_network_does_not(seeded):
    with seeded(0):
        encoder = PixelCNNItems((1, 64, 64), 16)
    # The same spot, moved by the product of the three strides, far from the border.
    images = torch.zeros(2, 1, 64, 64)
    images[0, 0, 26:28, 26:28] = images[1, 0, 26:28, 34:36] = 1
    sets = Sets.from_lengths(images, [2])
    network, both = encoder.network(sets), encoder(sets)
    torch.testing.assert_close(network[0], network[1])
    assert (both[0] - both[1]).norm() > 1e-2


def test_stacked_applies_both_encoders(seeded):
    with seeded(0):
        first, then = MLPItems(3, 6), ContextItems(6, 16)
    sets = Sets.from_lengths(random_images(5, 3), [2, 0, 3])
    stacked = Stacked(first, then)
    assert stacked.out_dim == 16
    torch.testing.assert_close(stacked(sets), then(sets.with_values(first(sets))))
    assert len(list(stacked.parameters())) == len(list(first.parameters())) + len(list(then.parameters()))


def test_stacked_encoders_must_fit_together(seeded):
    with seeded(0):
        first, context, whole = MLPItems(3, 6), ContextItems(5, 16), ItemWise(nn.Linear(6, 2), 6)
    with pytest.raises(ShapeError, match=r"gives 6 features.*shape \(5,\); build it with in_dim=6"):
        Stacked(first, context)
    assert Stacked(first, whole).out_dim == 2


def test_a_set_function_of_images_depends_on_the_other_images(seeded):
    with seeded(0):
        function = DeepSetFunction((1, 28, 28), Stacked(ImageItems((1, 28, 28), 8), ContextItems(8, 8)), hidden=(8,))
    images = random_images(3, 1, 28, 28)
    masks = torch.tensor([[True, False, False]])
    value = function.value(Sets.from_lengths(images, [3]), masks)
    images = images.clone()
    images[2] += 1
    assert (function.value(Sets.from_lengths(images, [3]), masks) - value).abs().max() > 1e-6
