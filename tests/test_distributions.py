"""Each family of actions agrees with torch.distributions, and with the definition summed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import CAMPAIGN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from bufcheck import distribution
from bufcheck.distribution import Scores
from bufcheck.distributions import categorical, diagonal_gaussian, squashed_gaussian
from bufcheck.errors import UsageError

CLOSE = {"rtol": 1e-6, "atol": 1e-6}
A = 9
Row = dict[str, Any]
Array = np.ndarray[Any, Any]
TYPES = {
    "subset_indices": pa.list_(pa.int32()),
    "num_actions": pa.int32(),
    "action_index": pa.int32(),
    "action_mask": pa.list_(pa.bool_()),
    "action": pa.list_(pa.float64()),
}


def test_every_family_is_tested_here() -> None:
    assert distribution.names() == ["categorical", "diagonal_gaussian", "squashed_gaussian"]


def policy(**said: Any) -> dict[str, Any]:
    return {
        "distribution": "categorical",
        "logits": "gather",
        "masked_logit": None,
        "temperature": 1.0,
        **said,
    }


def batch(rows: list[Row]) -> pa.RecordBatch:
    names = [name for name in TYPES if name in rows[0]]
    return pa.record_batch({n: pa.array([row[n] for row in rows], TYPES[n]) for n in names})


def scored(
    family: Any, rows: list[Row], output: Tensor, said: dict[str, Any], log_std: Tensor | None = None
) -> tuple[Array, dict[str, Array]]:
    """Which rows could be asked about, and what was said of every row (zero where it could not)."""
    asked = family.ask(batch(rows), said)
    mine = np.flatnonzero(asked.answerable)
    known = np.zeros(len(rows), bool)
    found = {name: np.zeros(len(rows)) for name in Scores._fields if name != "asked"}
    if len(mine):
        if log_std is not None and log_std.ndim == 2:
            log_std = log_std[mine]
        scores = family.score(output[mine], log_std, asked.take(mine), said)
        known[mine] = True if scores.asked is None else scores.asked.numpy()
        for name in found:
            if (values := getattr(scores, name)) is not None:
                found[name][mine] = values.numpy()
    return known, found


# Categorical

LOGITS: dict[str, Callable[[Any, int], Array]] = {
    "ordinary": lambda rng, count: rng.normal(0, 2, (count, A)),
    "huge": lambda rng, count: rng.choice([-1e4, 0.0, 1e4], (count, A)),
    "equal": lambda rng, count: np.full((count, A), rng.normal()),
    "far from zero": lambda rng, count: rng.normal(500, 2, (count, A)),
}


def questions(
    rng: Any, count: int, logits: str, *, masked: bool, some_illegal: bool = False
) -> list[Row]:
    """Rows of every K from 1 to A. The action is legal, unless `some_illegal`."""
    rows = []
    for i in range(count):
        k = A if logits == "all" else i % A + 1
        row: Row = {"num_actions": k, "action_index": int(rng.integers(k))}
        if logits != "all":
            row["subset_indices"] = rng.permutation(A)[:k].tolist()
        if masked:
            legal = rng.random(k) < 0.6
            if not some_illegal:
                legal[row["action_index"]] = True
            row["action_mask"] = legal.tolist()
        rows.append(row)
    return rows


def offered_logits(row: Row, output: Array, said: dict[str, Any]) -> Array:
    """The logits of one row, by the words of the schema."""
    if said["logits"] == "prefix":
        local = output[: row["num_actions"]].copy()
    else:
        local = output[row["subset_indices"]] if "subset_indices" in row else output.copy()
    if "action_mask" in row:
        closed = said["masked_logit"]
        local[~np.array(row["action_mask"])] = -np.inf if closed is None else closed
    tempered: Array = local / said["temperature"]
    return tempered


def by_hand(row: Row, output: Array, said: dict[str, Any]) -> dict[str, float]:
    local = torch.from_numpy(offered_logits(row, output, said))
    expected = Categorical(logits=local)
    log_probs, chances = expected.logits.numpy(), expected.probs.numpy()
    told, chances = log_probs[chances > 0], chances[chances > 0]
    mean = float((chances * told).sum())
    chosen = row["action_index"]
    mild = said["masked_logit"] == -5.0
    return {
        "log_prob": float(expected.log_prob(torch.tensor(chosen))),
        "entropy": float(expected.entropy()),
        "variance": float((chances * (told - mean) ** 2).sum()),
        "skew": float((chances * (told - mean) ** 3).sum()),
        "rank": int((local > local[chosen]).sum()),
        # At a masked logit of -5 an illegal action keeps a chance, so it is one of the choices.
        "choices": len(local) if mild else sum(row.get("action_mask", [True] * len(local))),
    }


def agrees(rows: list[Row], output: Array, said: dict[str, Any]) -> None:
    known, found = scored(categorical, rows, torch.from_numpy(output), said)
    assert known.all()
    for i, row in enumerate(rows):
        for name, value in by_hand(row, output[i], said).items():
            np.testing.assert_allclose(found[name][i], value, **CLOSE, err_msg=f"{name} of {row}")


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("masked_logit", ["no mask", None, -1e9, -1e8, -5.0])
@pytest.mark.parametrize("logits", ["gather", "prefix", "all"])
def test_categorical_is_that_of_torch(
    logits: str, masked_logit: str | float | None, temperature: float
) -> None:
    rng = np.random.default_rng([len(logits), int(temperature * 10)])
    masked = masked_logit != "no mask"
    said = policy(
        logits="prefix" if logits == "prefix" else "gather",
        masked_logit=masked_logit if masked else None,
        temperature=temperature,
    )
    # Where masked actions keep a chance, even a row without a legal one has a distribution.
    rows = questions(rng, 6 * A, logits, masked=masked, some_illegal=masked_logit in (-1e9, -1e8, -5.0))
    agrees(rows, rng.normal(0, 2, (len(rows), A)), said)


@pytest.mark.parametrize("logits", ["gather", "prefix", "all"])
@pytest.mark.parametrize("kind", LOGITS)
def test_extreme_logits_are_those_of_torch(kind: str, logits: str) -> None:
    rng = np.random.default_rng(len(kind))
    rows = questions(rng, 6 * A, logits, masked=True)
    said = policy(logits="prefix" if logits == "prefix" else "gather")
    agrees(rows, LOGITS[kind](rng, len(rows)), said)


def test_an_action_the_actor_itself_rules_out() -> None:
    rng = np.random.default_rng(3)
    rows = [row for row in questions(rng, 90, "gather", masked=False) if row["num_actions"] > 1]
    output = rng.normal(0, 2, (len(rows), A))
    chosen = np.arange(len(rows)) % 3 == 0
    for row, logits, it_is_chosen in zip(rows, output, chosen, strict=True):
        place = row["action_index"] if it_is_chosen else row["action_index"] - 1
        logits[row["subset_indices"][place]] = -np.inf
    agrees(rows, output, policy())
    _, found = scored(categorical, rows, torch.from_numpy(output), policy())
    assert np.isneginf(found["log_prob"][chosen]).all()
    assert np.isfinite(found["log_prob"][~chosen]).all()
    for name in ("entropy", "variance", "skew"):
        assert np.isfinite(found[name]).all(), name


def test_an_illegal_action_has_no_chance() -> None:
    row = {"subset_indices": [4, 1], "action_index": 0, "action_mask": [False, True]}
    known, found = scored(categorical, [row], torch.zeros(1, A).double(), policy())
    assert known.all()
    assert (found["log_prob"][0], found["choices"][0], found["rank"][0]) == (-math.inf, 1, 1)


def test_what_an_actor_answers_with_nan_is_nan() -> None:
    rows = questions(np.random.default_rng(1), 20, "gather", masked=False)
    output = torch.zeros(20, A).double()
    output[7] = math.nan
    known, found = scored(categorical, rows, output, policy())
    assert known.all(), "the question made sense: it is the answer that does not"
    assert np.flatnonzero(np.isnan(found["log_prob"])).tolist() == [7]


# What cannot be asked


def _with(**changed: Any) -> Callable[[Row], Row]:
    return lambda row: {**row, **{n: v(row) if callable(v) else v for n, v in changed.items()}}


def _of_length(length: int) -> Callable[[Row], Row]:
    """A row that offers so many actions, the mask included."""
    return _with(num_actions=length, action_index=length - 1, action_mask=[True] * length)


def _last(value: int | None) -> Callable[[Row], list[int | None]]:
    return lambda row: [*row["subset_indices"][:-1], value]


ANYWHERE: dict[str, Callable[[Row], Row]] = {
    "no index": _with(action_index=None),
    "a negative index": _with(action_index=-1),
    "the least index": _with(action_index=-(2**31)),
    "a huge index": _with(action_index=2**31 - 1),
    "no mask": _with(action_mask=None),
    "a mask with a hole": _with(action_mask=lambda row: [*row["action_mask"][:-1], None]),
    "a mask that is too long": _with(action_mask=lambda row: [*row["action_mask"], True]),
    "a mask that is too short": _with(action_mask=lambda row: row["action_mask"][:-1]),
    "an empty mask": _with(action_mask=[]),
    "nothing legal": _with(action_mask=lambda row: [False] * row["num_actions"]),
}
SENSELESS: dict[str, dict[str, Callable[[Row], Row]]] = {
    "gather": {
        **ANYWHERE,
        "an index past the end": _with(action_index=lambda row: len(row["subset_indices"])),
        "an id the actor does not have": _with(subset_indices=_last(A)),
        "a huge id": _with(subset_indices=_last(2**31 - 1)),
        "a negative id": _with(subset_indices=_last(-1)),
        "nothing offered": _with(subset_indices=[], action_mask=[], num_actions=0),
        "no subset": _with(subset_indices=None),
        "a subset with a hole": _with(subset_indices=_last(None)),
        "more ids than actions": _with(
            subset_indices=list(range(3 * A)), action_mask=[True] * 3 * A, action_index=3 * A - 1
        ),
    },
    "prefix": {
        **ANYWHERE,
        "an index past the end": _with(action_index=lambda row: row["num_actions"]),
        "more offered than there are": _of_length(A + 1),
        "far more offered": _of_length(40 * A),
        "no count": _with(num_actions=None),
        "a count of zero": _with(num_actions=0),
        "a negative count": _with(num_actions=-3),
        "a count no machine could pad to": _with(num_actions=2**31 - 1),
    },
    "all": {
        **ANYWHERE,
        "an index past the end": _with(action_index=A),
        "a far longer mask": _of_length(30 * A),
    },
}
MASKLESS = {  # the same without the column action_mask, where no mask can contradict K
    "prefix": {
        "more offered than there are": _with(num_actions=A + 1),
        "chosen beyond what there is": _with(num_actions=A + 5, action_index=A + 3),
        "a count no machine could pad to": _with(num_actions=2**31 - 1),
    },
    "all": {"an index past the end": _with(action_index=A), "no index": _with(action_index=None)},
}


def stands_alone(logits: str, rows: list[Row], broken: Array) -> None:
    """Broken rows are not asked about, and the others are scored as if they were alone."""
    said = policy(logits="prefix" if logits == "prefix" else "gather")
    output = torch.randn(len(rows), A, generator=torch.Generator().manual_seed(5)).double()
    known, found = scored(categorical, rows, output, said)
    assert known.tolist() == (~broken).tolist()
    for i in np.flatnonzero(~broken):
        for name, value in by_hand(rows[i], output[i].numpy(), said).items():
            np.testing.assert_allclose(found[name][i], value, **CLOSE, err_msg=name)


@pytest.mark.parametrize(
    ("logits", "fault"), [(logits, fault) for logits, faults in SENSELESS.items() for fault in faults]
)
def test_what_makes_no_sense_is_not_asked(logits: str, fault: str) -> None:
    rows = questions(np.random.default_rng(8), 3 * A, logits, masked=True)
    broken = np.arange(len(rows)) % 4 == 1
    rows = [
        SENSELESS[logits][fault](row) if bad else row for row, bad in zip(rows, broken, strict=True)
    ]
    stands_alone(logits, rows, broken)
    stands_alone(logits, [row for row, bad in zip(rows, broken, strict=True) if bad], broken[broken])


@pytest.mark.parametrize(
    ("logits", "fault"), [(logits, fault) for logits, faults in MASKLESS.items() for fault in faults]
)
def test_what_makes_no_sense_without_a_mask_either(logits: str, fault: str) -> None:
    rows = questions(np.random.default_rng(8), 3 * A, logits, masked=False)
    broken = np.arange(len(rows)) % 4 == 1
    rows = [MASKLESS[logits][fault](row) if bad else row for row, bad in zip(rows, broken, strict=True)]
    stands_alone(logits, rows, broken)


@pytest.mark.parametrize("logits", list(SENSELESS))
@settings(
    max_examples=1000 if CAMPAIGN else 40,
    derandomize=not CAMPAIGN,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_broken_rows_never_disturb_their_neighbours(logits: str, data: st.DataObject) -> None:
    faults = SENSELESS[logits]
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    wrong = data.draw(st.lists(st.sampled_from([None, None, *faults]), min_size=1, max_size=12), "rows")
    rows = questions(np.random.default_rng(seed), len(wrong), logits, masked=True)
    rows = [row if name is None else faults[name](row) for row, name in zip(rows, wrong, strict=True)]
    stands_alone(logits, rows, np.array([name is not None for name in wrong]))


@pytest.mark.parametrize(
    ("subsets", "expected"),
    [
        ([[0, 1, 2], [0], [0, 1]], True),
        ([[0, 1, 2], [1]], False),
        ([[0, 1], [1, 0]], False),
        ([[0, 2]], False),
        ([[0, 1], None, [], [0, None]], True),
        ([None, [0, 1], [0, 2]], False),
    ],
)
def test_subsets_that_are_the_first_actions_are_recognised(subsets: Any, expected: bool) -> None:
    rows = [{"subset_indices": [5]}, *({"subset_indices": subset} for subset in subsets)]
    assert categorical.is_prefix(batch(rows).slice(1)) is expected


# Gaussians

SPREADS = ["vector", "one number", "scalar", "by state", "a row each"]


def gaussian(
    kind: str, count: int, size: int, seed: int
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """What the actor gives (outputs, log_std), and the mean and log_std that it means."""
    rng = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, size, generator=rng).double()
    log_std = torch.rand(count, size, generator=rng).double() * 2 - 1.5
    if kind == "vector":
        return mean, log_std[0], mean, log_std[0].expand_as(mean)
    if kind == "one number":
        return mean, log_std[0, :1], mean, log_std[0, 0].expand_as(mean)
    if kind == "scalar":
        return mean, log_std[0, 0], mean, log_std[0, 0].expand_as(mean)
    if kind == "by state":
        return torch.cat([mean, log_std], 1), None, mean, log_std
    return mean, log_std, mean, log_std


def moments(log_prob: Callable[[Tensor], Tensor], mean: Tensor, log_std: Tensor) -> tuple[Array, ...]:
    """Mean, variance and third central moment of a sum of log-probs, each integrated on a fine grid.

    `log_prob` takes samples before any squashing, [B, n, points], and gives a log-prob of each number.
    """
    x = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weight = torch.exp(Normal(0.0, 1.0).log_prob(x))
    weight /= weight.sum()
    values = log_prob(mean[..., None] + log_std.exp()[..., None] * x)
    expected = (values * weight).sum(-1)
    away = values - expected[..., None]
    parts = (expected, (away**2 * weight).sum(-1), (away**3 * weight).sum(-1))
    return tuple(part.sum(1).numpy() for part in parts)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("kind", SPREADS)
def test_a_gaussian_is_that_of_torch(kind: str, size: int) -> None:
    output, given_std, mean, log_std = gaussian(kind, 25, size, seed=size)
    actions = mean + 2 * torch.randn(mean.shape, generator=torch.Generator().manual_seed(1)).double()
    rows = [{"action": action} for action in actions.tolist()]
    known, found = scored(diagonal_gaussian, rows, output, policy(), given_std)
    expected = Independent(Normal(mean, log_std.exp()), 1)
    assert known.all()
    np.testing.assert_allclose(found["log_prob"], expected.log_prob(actions), **CLOSE)
    np.testing.assert_allclose(found["entropy"], expected.entropy(), **CLOSE)
    each = Normal(mean[..., None], log_std.exp()[..., None])
    minus_entropy, variance, skew = moments(each.log_prob, mean, log_std)
    np.testing.assert_allclose(found["entropy"], -minus_entropy, **CLOSE)
    np.testing.assert_allclose(found["variance"], variance, **CLOSE)
    np.testing.assert_allclose(found["skew"], skew, **CLOSE)


@pytest.mark.parametrize("family", [diagonal_gaussian, squashed_gaussian], ids=lambda f: f.__name__)
@pytest.mark.parametrize("action", [None, [], [0.1], [0.1, None], [0.1, 0.2, 0.3]], ids=str)
def test_an_action_of_another_length_is_not_asked(family: Any, action: Any) -> None:
    output, log_std, _, _ = gaussian("vector", 5, 2, seed=4)
    healthy: list[Row] = [{"action": [0.1 * i, -0.2]} for i in range(5)]
    rows: list[Row] = [*healthy[:2], {"action": action}, *healthy[3:]]
    known, found = scored(family, rows, output, policy(), log_std)
    assert known.tolist() == [True, True, False, True, True]
    _, alone = scored(family, healthy, output, policy(), log_std)
    for name in ("log_prob", "entropy", "variance", "skew"):
        np.testing.assert_allclose(found[name][known], alone[name][known], rtol=1e-12, err_msg=name)
    wide, _ = scored(family, [rows[2]] * 5, output, policy(action_size=2), log_std)
    assert not wide.any(), "of a dump whose actions are known to be pairs"


@pytest.mark.parametrize(
    ("outputs", "log_std", "words"),
    [
        (2, None, "the actor gives 2 numbers, but an action has 2"),
        (3, None, "the actor gives 3 numbers, but an action has 2"),
        (3, [0.0, 0.0], "the actor gives 3 numbers and a log_std, but an action has 2"),
        (4, [0.0, 0.0], "the actor gives 4 numbers and a log_std, but an action has 2"),
        (2, [0.0, 0.0, 0.0], "log_std has 3 numbers, but an action has 2"),
    ],
)
def test_an_actor_for_other_actions_is_refused(outputs: int, log_std: Any, words: str) -> None:
    asked = diagonal_gaussian.ask(batch([{"action": [0.1, 0.2]}]), policy())
    spread = None if log_std is None else torch.tensor(log_std)
    with pytest.raises(UsageError, match=words):
        diagonal_gaussian.score(torch.zeros(1, outputs), spread, asked, policy())


# Squashed


def squashed(mean: Tensor, log_std: Tensor) -> TransformedDistribution:
    return TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", SPREADS)
def test_a_squashed_gaussian_is_that_of_torch(kind: str, size: int) -> None:
    output, given_std, mean, log_std = gaussian(kind, 40, size, seed=size)
    rng = torch.Generator().manual_seed(2)
    actions = torch.tanh(mean + log_std.exp() * torch.randn(mean.shape, generator=rng).double())
    rows = [{"action": action} for action in actions.tolist()]
    known, found = scored(squashed_gaussian, rows, output, policy(), given_std)
    assert known.all()
    expected = squashed(mean, log_std).log_prob(actions).sum(1)
    np.testing.assert_allclose(found["log_prob"], expected, **CLOSE)


@pytest.mark.parametrize("sign", [-1, 1])
def test_near_the_bound_a_squashed_log_prob_is_still_exact(sign: int) -> None:
    actions = sign * (1 - torch.logspace(-1, -7, 30, dtype=torch.float64))[:, None]
    mean = torch.full_like(actions, sign * 2.0)
    log_std = torch.tensor([0.7]).double()
    rows = [{"action": action} for action in actions.tolist()]
    known, found = scored(squashed_gaussian, rows, mean, policy(), log_std)
    assert known.all()
    expected = squashed(mean, log_std.expand_as(mean)).log_prob(actions)[:, 0]
    np.testing.assert_allclose(found["log_prob"], expected, **CLOSE)


def test_a_squashed_density_holds_all_chance() -> None:
    """Summed over the whole interval it makes 1: no reference but arithmetic."""
    actions = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[1:-1, None]
    rows = [{"action": action} for action in actions.tolist()]
    output = torch.tensor([[0.3, -0.8]]).double().expand(len(rows), 2)
    known, found = scored(squashed_gaussian, rows, output, policy())
    assert known.all()
    assert np.exp(found["log_prob"]).sum() * 1e-4 == pytest.approx(1, abs=1e-6)


def test_a_squashed_action_at_its_bound_cannot_be_asked_and_one_beyond_has_no_chance() -> None:
    healthy = [0.2, -0.3]
    odd: dict[str, list[float]] = {
        "at": [1.0, 0.1],
        "at the other": [0.1, -1.0],
        "beyond": [1.0000001, 0.0],
        "far beyond": [0.0, -7.0],
        "at and beyond": [1.0, 2.0],
        "infinite": [math.inf, 0.0],
    }
    rows = [{"action": action} for action in [healthy, *odd.values(), healthy]]
    output, log_std, mean, expanded = gaussian("vector", len(rows), 2, seed=9)
    known, found = scored(squashed_gaussian, rows, output, policy(), log_std)
    assert dict(zip(odd, known[1:-1].tolist(), strict=True)) == {
        "at": False,
        "at the other": False,
        "beyond": True,
        "far beyond": True,
        "at and beyond": True,
        "infinite": True,
    }
    assert np.isneginf(found["log_prob"][1:-1][known[1:-1]]).all()
    expected = squashed(mean, expanded).log_prob(torch.tensor([healthy]).double()).sum(1)
    np.testing.assert_allclose(found["log_prob"][[0, -1]], expected[[0, -1]], **CLOSE)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1])
def test_squash_epsilon_is_added_inside_the_logarithm(epsilon: float) -> None:
    output, log_std, mean, expanded = gaussian("vector", 40, 2, seed=6)
    rng = torch.Generator().manual_seed(7)
    before = mean + expanded.exp() * torch.randn(mean.shape, generator=rng).double()
    actions = torch.tanh(before)
    said = policy(squash_epsilon=epsilon)
    rows = [{"action": action} for action in actions.tolist()]
    _, found = scored(squashed_gaussian, rows, output, said, log_std)
    plain = Normal(mean, expanded.exp()).log_prob(before)
    expected = (plain - torch.log(1 - actions**2 + epsilon)).sum(1)
    np.testing.assert_allclose(found["log_prob"], expected, **CLOSE)
    without, exact = scored(squashed_gaussian, rows, output, policy(), log_std)
    assert without.all() and (exact["log_prob"] > found["log_prob"]).all()


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
@pytest.mark.parametrize(
    # An even grid of 48 points: exact for what trainers sample with, a rough guide where the spread
    # is so wide that nearly every action sits at a bound.
    ("log_std", "close"),
    [(-4.0, 1e-6), (-1.0, 1e-6), (0.0, 1e-6), (0.5, 1e-6), (1.0, 1e-4), (2.0, 1e-2)],
)
def test_what_a_squashed_gaussian_expects(log_std: float, close: float, epsilon: float) -> None:
    mean = torch.tensor([[0.0, 0.0], [0.4, -2.0], [3.0, 0.1]]).double()
    spread = torch.tensor([log_std, log_std - 0.3]).double()
    rows = [{"action": [0.1, 0.1]}] * len(mean)
    _, found = scored(squashed_gaussian, rows, mean, policy(squash_epsilon=epsilon), spread)

    def log_prob(before: Tensor) -> Tensor:
        # 1 − tanh² = 1 / cosh²
        slope = (epsilon + torch.cosh(before) ** -2).log()
        return Normal(mean[..., None], spread.exp()[:, None]).log_prob(before) - slope

    expected, variance, skew = moments(log_prob, mean, spread.expand_as(mean))
    np.testing.assert_allclose(found["entropy"], -expected, rtol=close, atol=close)
    np.testing.assert_allclose(found["variance"], variance, rtol=close, atol=close)
    np.testing.assert_allclose(found["skew"], skew, rtol=5 * close, atol=5 * close)


def test_the_entropy_of_a_squashed_gaussian_is_that_of_its_samples() -> None:
    torch.manual_seed(0)
    mean, log_std = torch.tensor([[0.5, -1.0]]).double(), torch.tensor([-0.5, 0.3]).double()
    source = squashed(mean, log_std)
    told = source.log_prob(source.sample((400_000,))).sum((1, 2))
    _, found = scored(squashed_gaussian, [{"action": [0.1, 0.1]}], mean, policy(), log_std)
    standard_error = float(told.std()) / math.sqrt(len(told))
    assert abs(found["entropy"][0] + float(told.mean())) < 4 * standard_error
    assert found["variance"][0] == pytest.approx(float(told.var()), rel=0.02)
    assert found["skew"][0] == pytest.approx(float(((told - told.mean()) ** 3).mean()), rel=0.1)
