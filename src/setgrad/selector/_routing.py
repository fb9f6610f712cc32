"""The conventions of scikit-learn, without importing it: parameters, tags, and which arguments are passed on."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, final

import numpy as np

from setgrad.errors import unknown_name
from setgrad.selector._options import declared_options

_METHODS = ("fit", "predict", "predict_proba", "decision_function", "score")


@final
@dataclass(frozen=True)
class Requests:
    """Which arguments of each method are passed on, as the methods `set_..._request` say."""

    asked: Mapping[str, Mapping[str, bool | str | None]] = field(default_factory=dict)

    def of(self, method: str) -> Mapping[str, bool | str | None]:
        """Return what was said about a method."""
        return self.asked.get(method, {})

    def with_more(self, method: str, requests: Mapping[str, bool | str | None]) -> Requests:
        """Return these requests and more."""
        return Requests({**self.asked, method: {**self.of(method), **requests}})

    def __sklearn_clone__(self) -> Requests:
        return self


class AbstractConventions(abc.ABC):
    """What `GridSearchCV`, `cross_val_predict` and other tools of scikit-learn ask of an estimator.

    With `sklearn.set_config(enable_metadata_routing=True)` they pass arguments on to the methods that asked for them.
    """

    # `clone` of scikit-learn copies an attribute of this name.
    _metadata_request: Requests

    def set_params(self, **params: Any) -> Self:
        """Change options by name, and return the selector.

        Raises:
            OptionError: If there is no such option.
        """
        names = [declared.name for declared in declared_options()]
        for name, value in params.items():
            if name not in names:
                raise unknown_name("option", name, names)
            setattr(self, name, value)
        return self

    def set_fit_request(self, **requests: bool | str | None) -> Self:
        """Say which arguments tools of scikit-learn pass on to `fit`, as in `set_fit_request(groups=True)`.

        Args:
            **requests: True to pass an argument on, False not to, None to make it an error; or another name for it.

        Returns:
            The selector itself.

        Raises:
            OptionError: If `fit` has no such argument.
        """
        return self._set_request("fit", requests)

    def set_score_request(self, **requests: bool | str | None) -> Self:
        """Say which arguments are passed on to `score`; see `set_fit_request`."""
        return self._set_request("score", requests)

    def set_predict_request(self, **requests: bool | str | None) -> Self:
        """Say which arguments are passed on to `predict`; see `set_fit_request`."""
        return self._set_request("predict", requests)

    def set_predict_proba_request(self, **requests: bool | str | None) -> Self:
        """Say which arguments are passed on to `predict_proba`; see `set_fit_request`."""
        return self._set_request("predict_proba", requests)

    def get_metadata_routing(self) -> Any:
        """Return which arguments are passed on, as an object of scikit-learn."""
        from sklearn.utils.metadata_routing import MetadataRequest

        request = MetadataRequest(owner=type(self).__name__)
        for method in _METHODS:
            asked = getattr(self, "_metadata_request", Requests()).of(method)
            for name in self._arguments_of(method):
                getattr(request, method).add_request(param=name, alias=asked.get(name))
        # Pipelines pass on sample_weight=None, also to a score that has no such argument, and would refuse it.
        request.score.add_request(param="sample_weight", alias=None)
        return request

    @property
    def classes_(self) -> np.ndarray:
        """False and True: what `y` says of each row. `cross_val_predict` asks a fitted estimator for it."""
        if not self.__sklearn_is_fitted__():
            raise AttributeError("classes_ is there after a fit")
        return np.array([False, True])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        tags = Tags(estimator_type=None, target_tags=TargetTags(required=True, multi_output=True))
        tags.input_tags = InputTags(two_d_array=False, three_d_array=True)
        return tags

    def _set_request(self, method: str, requests: dict[str, bool | str | None]) -> Self:
        names = self._arguments_of(method)
        for name in requests:
            if name not in names:
                raise unknown_name(f"argument of {method}", name, names)
        self._metadata_request = getattr(self, "_metadata_request", Requests()).with_more(method, requests)
        return self

    def _arguments_of(self, method: str) -> list[str]:
        """Return the arguments of a method that are passed by name."""
        parameters = inspect.signature(getattr(self, method)).parameters.values()
        return [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
