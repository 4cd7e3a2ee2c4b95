"""What SQL may name as $setting: the dump's metadata, and what follows from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bufcheck import schema

if TYPE_CHECKING:
    from bufcheck.dump import Dump

SAMPLE_ROWS = 50_000
"""Enough to measure how often values coincide by chance."""
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
HOLES_ARE_LEGAL = "`clean --unit row` took rows out, and a hole beside one is no fault"
DERIVED = {
    "policy_state_size": "numbers in a state, by policy.state_shape",
    "policy_subset_all": "true where policy.subset is `all`, else null",
    "rows": "rows of the dump that were read",
    "sample_below": "hashes up to this belong to a sample of about 50,000 rows",
    "configured": "bufcheck.toml describes the policy",
    "declared": "the files describe themselves",
    "unit_roundoff": "of old_log_prob: the coarser of policy.precision and the column's type",
    "tolerance": "how far two log-probs of one sample may lie apart, plus",
    "relative_tolerance": "this times their size",
    "new_tolerance": "the same where new_log_prob is one of the two",
    "new_relative_tolerance": "likewise",
    "entropy_tolerance": "how far a stored entropy may lie from the true one",
    "cleaned_by_row": "why holes are legal where `clean --unit row` took rows out, else null",
    "replay_lacks": "what replay would need; null where actors were replayed",
}
NAMES = {
    *(name.replace(".", "_") for name, key in schema.load().keys.items() if key.type != "object"),
    *DERIVED,
}


def of_dump(
    dump: Dump, rows: int, tolerance: float | None, replay_lacks: str | None = None
) -> dict[str, Any]:
    """Every setting by its name, with _ for . in the names of metadata."""
    found: dict[str, Any] = {
        name.replace(".", "_"): dump.settings[name]
        for name, key in schema.load().keys.items()
        if key.type != "object"
    }
    shape = dump.policy["state_shape"]
    near, relative = _tolerance(_roundoff(dump, "old_log_prob"), tolerance)
    again, relative_again = _tolerance(_roundoff(dump, "old_log_prob", "new_log_prob"), tolerance)
    coarse_entropy = any(schema.type_name(c.type) == "float16" for c in dump.columns.get("entropy", []))
    return found | {
        "policy_state_size": math.prod(shape) if shape else None,
        "policy_subset_all": dump.policy["subset"] == "all" or None,
        "rows": rows,
        "sample_below": (2**64 - 1) // max(1, rows // SAMPLE_ROWS),
        "configured": any(k.startswith("policy.") for k in dump.assumed_from_config()),
        "declared": dump.declared,
        "unit_roundoff": _roundoff(dump, "old_log_prob"),
        "tolerance": near,
        "relative_tolerance": relative,
        "new_tolerance": again,
        "new_relative_tolerance": relative_again,
        "entropy_tolerance": 4e-3 if coarse_entropy else 1e-4,
        "cleaned_by_row": HOLES_ARE_LEGAL if _cleaned_by_row(dump) else None,
        "replay_lacks": replay_lacks,
    }


def _cleaned_by_row(dump: Dump) -> bool:
    told = (schema.parse_metadata(s.metadata, str(s.path)).get("cleaned") for s in dump.sources)
    return any(
        isinstance(t, dict) and t.get("unit") == "row" and t.get("rows_dropped") != 0 for t in told
    )


def replay_roundoff(dump: Dump) -> float:
    """Of the precision log-probs were computed in; what was fed to the actor is stored as float32."""
    return max(UNIT_ROUNDOFF[dump.policy["precision"]], UNIT_ROUNDOFF["float32"])


def replay_lacks(dump: Dump) -> str | None:
    """The column without which no actor can be asked about this dump."""
    needed = ["state_embed", "old_log_prob"]
    if dump.policy["distribution"] != "categorical":
        needed.append("action")
    else:
        needed.append("action_index")
        if dump.policy["logits"] == "prefix":
            needed.append("num_actions")
        elif dump.policy["subset"] != "all":
            needed.append("subset_indices")
    return next((f"column {name}" for name in needed if not dump.has(name)), None)


def _roundoff(dump: Dump, *columns: str) -> float:
    """The coarsest of the precision declared and the types the columns are stored in."""
    stored = [schema.type_name(c.type) for name in columns for c in dump.columns.get(name, [])]
    return max(UNIT_ROUNDOFF[t] for t in [dump.policy["precision"], *stored] if t in UNIT_ROUNDOFF)


def _tolerance(roundoff: float, given: float | None) -> tuple[float, float]:
    if given is not None:
        return given, 0.0
    if roundoff > UNIT_ROUNDOFF["float32"]:
        return 4 * roundoff, 4 * roundoff
    return 1e-4, 1e-5
