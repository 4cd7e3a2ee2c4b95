"""Stable-Baselines3's `.zip`: PPO, A2C, TRPO and MaskablePPO, as MlpPolicy or CnnPolicy.

`policy.pth` is read as tensors only; what shapes do not tell comes from the plain text in `data`. The
pickles beside that text stay closed. What neither tells is assumed, and recorded as such.
"""

from __future__ import annotations

import math
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bufcheck.actor import Loading, Network
from bufcheck.actors._stable_baselines3_zip import DAMAGE, DATA, POLICY, Saved, read

if TYPE_CHECKING:
    import torch

KIND = "Stable-Baselines3 zip"
POLICIES = {"stable_baselines3.common.policies", "sb3_contrib.common.maskable.policies"}
"""Where the policy classes live whose forward() is known."""
KEYS = re.compile(
    r"log_std|(action_net|value_net)\.(weight|bias)"
    r"|mlp_extractor\.(policy|value)_net\.\d{1,4}\.(weight|bias)"
    r"|(pi_|vf_)?features_extractor\.(cnn\.[024]|linear\.0)\.(weight|bias)"
)
EXTRACTORS = {
    f"<class 'stable_baselines3.common.torch_layers.{name}'>"
    for name in ("FlattenExtractor", "NatureCNN")
}
ACTIVATIONS = {
    *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid"),
    *("Hardtanh", "Hardswish", "Hardsigmoid", "Softplus", "Softsign", "Identity"),
}
STRIDES = (4, 2, 1)
NO_REPLAY = "validate without --actor: bufcheck does not replay it"
ONE_HOT = "store them so, and save policy_net and action_net with bufcheck.save_actor(module, path)"


def recognises(file: BinaryIO) -> bool:
    """By its members, or only the first: one that is cut off has lost the list of them."""
    head = file.read(30 + len(DATA))
    if not head.startswith(b"PK\x03\x04"):
        return False
    if head[26:28] == len(DATA).to_bytes(2, "little") and head[30:] == DATA.encode():
        return True
    try:
        with zipfile.ZipFile(file) as archive:
            return {DATA, POLICY} <= set(archive.namelist())
    except DAMAGE:
        return False


def load(path: Path, loading: Loading) -> Network:
    from bufcheck.actors._layers import Chain

    saved = read(path)
    _refuse_what_cannot_be_replayed(saved)
    module = Chain(*_features(saved), *_hidden_layers(saved), saved.linear("action_net"))
    shape = saved.state_shape or (_first_width(module),)
    actions = _outputs(module, shape, saved)
    notes = []
    if saved.data.get("_last_original_obs") is not None:
        notes.append("was trained behind VecNormalize, whose statistics are not in the zip")
    return Network(module, KIND, _log_std(saved, actions), shape, notes, saved.assumed)


# What cannot be replayed


def _refuse_what_cannot_be_replayed(saved: Saved) -> None:
    if any(name.startswith("lstm_") for name in saved.weights):
        raise saved.refusal("a recurrent policy, whose log-probs depend on earlier states", NO_REPLAY)
    if "action_net.weight" not in saved.weights:
        raise saved.refusal("has no action_net, as an off-policy model has none", NO_REPLAY)
    log_std = saved.weights.get("log_std")
    if saved.data.get("use_sde") or (log_std is not None and log_std.dim() != 1):
        raise saved.refusal("uses gSDE, whose noise depends on the state", NO_REPLAY)
    _refuse_spaces(saved.kind("observation_space"), saved.kind("action_space"), saved)
    _refuse_custom_code(saved)


def _refuse_spaces(observations: str, actions: str, saved: Saved) -> None:
    if actions in ("MultiDiscrete", "MultiBinary"):
        raise saved.refusal(f"its actions are {actions}: a factored policy", NO_REPLAY)
    if actions not in ("Discrete", "Box"):
        raise saved.refusal("its `data` does not say what its actions are")
    if observations == "Dict":
        raise saved.refusal("its observations are a Dict, and a stored state is one vector")
    if observations in ("Discrete", "MultiDiscrete"):
        raise saved.refusal(f"its observations are {observations}, which it sees one-hot", ONE_HOT)
    if observations not in ("Box", "MultiBinary"):
        raise saved.refusal("its `data` does not say what its observations are")


def _refuse_custom_code(saved: Saved) -> None:
    """A class of the user's may compute anything from the same weights."""
    policy = str(saved.part("policy_class").get("__module__"))
    if policy not in POLICIES:
        raise saved.refusal(f"its policy class is from {policy}, not from Stable-Baselines3")
    extractor = saved.options.get("features_extractor_class")
    if extractor is not None and str(extractor) not in EXTRACTORS:
        raise saved.refusal(f"has a features extractor of its own, {extractor}")
    strange = next((name for name in saved.weights if not KEYS.fullmatch(name)), None)
    if strange is not None:
        raise saved.refusal(f"has {strange}, which no MlpPolicy or CnnPolicy has")


# The layers


def _features(saved: Saved) -> list[torch.nn.Module]:
    """What comes before the MLP: images scaled, then NatureCNN or only flattened."""
    import torch

    from bufcheck.actors._layers import by_255

    layers: list[torch.nn.Module] = []
    if _scales_images(saved):
        layers.append(by_255())
        saved.assume("image_scaling", "state / 255", "uint8 images, and Stable-Baselines3's default")
    prefixes = [p for p in ("pi_features_extractor", "features_extractor") if _has(saved, p)]
    if prefixes:
        for i, stride in zip((0, 2, 4), STRIDES, strict=True):
            layers += [saved.convolution(f"{prefixes[0]}.cnn.{i}", stride), torch.nn.ReLU()]
        layers += [torch.nn.Flatten(), saved.linear(f"{prefixes[0]}.linear.0"), torch.nn.ReLU()]
        saved.assume("cnn_stride", list(STRIDES), "Stable-Baselines3's NatureCNN")
    elif saved.state_shape is not None and len(saved.state_shape) > 1:
        layers.append(torch.nn.Flatten())
    return layers


def _has(saved: Saved, prefix: str) -> bool:
    return any(name.startswith(f"{prefix}.") for name in saved.weights)


def _scales_images(saved: Saved) -> bool:
    """As Stable-Baselines3 decides it; of the bounds of a large image the text shows only the edges."""
    space = saved.part("observation_space")
    bounds = [set(re.findall(r"[^\s\[\].]+", str(space.get(end)))) for end in ("low", "high")]
    return (
        saved.options.get("normalize_images", True) is not False
        and space.get("dtype") == "uint8"
        and len(saved.state_shape or ()) == 3
        and bounds == [{"0"}, {"255"}]
    )


def _hidden_layers(saved: Saved) -> list[torch.nn.Module]:
    found = (re.fullmatch(r"mlp_extractor\.policy_net\.(\d{1,4})\.weight", k) for k in saved.weights)
    places = sorted(int(match[1]) for match in found if match)
    if places != list(range(0, 2 * len(places), 2)):
        raise saved.refusal("its policy_net is not Linear layers with activations between them")
    layers: list[torch.nn.Module] = []
    for place in places:
        layers += [saved.linear(f"mlp_extractor.policy_net.{place}"), _activation(saved)]
    return layers


def _activation(saved: Saved) -> torch.nn.Module:
    import torch

    given = saved.options.get("activation_fn")
    if given is None:
        saved.assume("activation_fn", "Tanh", "Stable-Baselines3's default")
        return torch.nn.Tanh()
    found = re.fullmatch(r"<class 'torch\.nn\.modules\.\w+\.(\w+)'>", str(given))
    if not found or found[1] not in ACTIVATIONS:
        raise saved.refusal(f"its activation_fn is {str(given)[:80]}, which is not described")
    made: torch.nn.Module = getattr(torch.nn, found[1])()
    return made


def _first_width(module: torch.nn.Module) -> int:
    import torch

    return next(m.in_features for m in module.modules() if isinstance(m, torch.nn.Linear))


def _outputs(module: torch.nn.Module, shape: tuple[int, ...], saved: Saved) -> int:
    """How many numbers it gives for a state of this shape, which the file may have made up."""
    from bufcheck.actors._shapes import after

    reached = shape
    try:
        for layer in module.children():
            reached = after(layer, reached)
    except ValueError as error:
        raise saved.refusal(f"its layers do not fit states of shape {list(shape)} ({error})") from None
    return reached[0]


def _log_std(saved: Saved, actions: int) -> torch.Tensor | None:
    """The spread of a Gaussian; what the action space says must be what the network gives."""
    log_std, space = saved.weights.get("log_std"), saved.part("action_space")
    if saved.kind("action_space") == "Discrete":
        if log_std is not None or str(space.get("n")) != str(actions):
            raise saved.refusal(f"gives {actions} logits for {space.get('n')} actions")
        return None
    shape = space.get("_shape")
    if not isinstance(shape, list) or not all(type(n) is int for n in shape):
        raise saved.refusal("its `data` does not say what its actions are")
    if log_std is None or not log_std.numel() == actions == math.prod(shape):
        raise saved.refusal(f"its Gaussian has {actions} means, and its actions have shape {shape}")
    return log_std
