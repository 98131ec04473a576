"""The ``features`` argument of models: kernel maps of numbers, encoders of vectors and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from torchpbp.errors import ArgumentError
from torchpbp.features.encoded import EncodedMap, Encoders
from torchpbp.features.maps import KernelMap
from torchpbp.graph.domains import require_encoders
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.inference.observable import Observable, make_map

EXPECTED = "Nystroem(…), RandomFourier(…), an encoder (nn.Module), or a dict of these by leaf"


def read_features(graph: LatentGraph, features: Any, context: bool) -> tuple[KernelMap | None, Encoders | None]:
    """The kernel map of continuous variables, and the encoders of leaves.

    Args:
        graph: the model's.
        features: the model's argument.
        context: whether the encoder reads all leaves of a row.

    Raises:
        ArgumentError: neither a map nor an encoder, or unknown leaves.
        StructureError: a vector or image without an encoder.
    """
    continuous = {v: d for v in graph.observed if isinstance(d := graph.variables[v], Continuous)}
    shaped = [v for v, d in continuous.items() if d.shape]
    kernel_map: KernelMap | None = None
    modules: dict[str, nn.Module] = {}
    if isinstance(features, Mapping):
        for name, part in features.items():
            if name not in continuous:
                raise ArgumentError(
                    f"features: '{name}' is not a continuous observable. There are: {', '.join(continuous) or 'none'}."
                )
            if isinstance(part, KernelMap):
                if kernel_map is not None and kernel_map is not part:
                    raise ArgumentError(
                        "features: expected one kernel map for all numbers, got several. Use the same one."
                    )
                kernel_map = part
            elif isinstance(part, nn.Module):
                modules[name] = part
            else:
                raise ArgumentError(f"features: expected {EXPECTED}; got {_kind(part)} for '{name}'.")
    elif isinstance(features, KernelMap) or features is None:
        kernel_map = features
    elif isinstance(features, nn.Module):
        chosen = shaped or list(continuous)
        if not chosen:
            raise ArgumentError("features: an encoder was given, but the graph has no continuous observable to encode.")
        modules = dict.fromkeys(chosen, features)
    else:
        raise ArgumentError(f"features: expected {EXPECTED}; got {_kind(features)}.")
    require_encoders(graph.variables, "PBP", modules)
    if not modules:
        if context:
            raise ArgumentError("context=True: expected an encoder in features=, got none.")
        return kernel_map, None
    if context and len(set(modules.values())) > 1:
        raise ArgumentError("context=True: expected one encoder for all leaves, got several.")
    shapes = {v: continuous[v].shape for v in continuous if v in modules}
    return kernel_map, Encoders({v: modules[v] for v in shapes}, shapes, context)


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def make_observables(graph: LatentGraph, kernel_map: KernelMap | None, encoders: Encoders | None) -> list[Observable]:
    """The observables of a model, with unfitted feature maps."""
    encoded = {} if encoders is None else encoders.sizes
    result = []
    for v in graph.observed:
        domain = graph.variables[v]
        if encoders is not None and v in encoded:
            result.append(Observable(v, domain, EncodedMap(v, encoders.shapes[v], encoded[v], encoders)))
        else:
            result.append(Observable(v, domain, make_map(domain, kernel_map)))
    return result
