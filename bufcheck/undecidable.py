"""What a dump cannot show: regimes in which bugs look alike, or like no bug at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bufcheck.database import Database
    from bufcheck.replayer import Replayer

NEARLY_UNIFORM = 0.99


def of_dump(database: Database, replay: Replayer) -> list[str]:
    """One sentence for each regime that the dump is in."""
    categorical = replay.policy["distribution"] == "categorical"
    return [*_actors(database, replay), *(_choices(database, replay) if categorical else [])]


def _actors(database: Database, replay: Replayer) -> list[str]:
    found = []
    [seen] = database.rows(
        "SELECT count(DISTINCT agent_id) AS agents, count(DISTINCT policy_version) AS versions,"
        " count(DISTINCT actor) AS actors FROM replay"
    )
    [shared] = database.rows(
        "SELECT count(*) AS actors FROM (SELECT actor FROM replay WHERE actor IS NOT NULL"
        " GROUP BY actor HAVING count(DISTINCT agent_id) > 1)"
    )
    if seen["agents"] > 1 and shared["actors"]:
        found.append(
            "agents share an actor: agent-actor-swap leaves no trace, and agents whose rows are crossed"
            " show only where their states or subsets differ"
        )
    if seen["versions"] < 2 or seen["actors"] < 2 or replay.actors.is_one_for_all:
        found.append(
            "a single version of the policy is known: stale-policy-version and recomputed-after-update"
            " cannot be told from any other drift (give --actor for each policy_version)"
        )
    return found


def _choices(database: Database, replay: Replayer) -> list[str]:
    found = []
    if replay.is_prefix:
        found.append(
            "every subset is 0..K-1: slice-vs-gather and subset-order-lost change nothing, and an index"
            " is also an id, so that local-as-global-index looks like mask-not-applied"
        )
    space = replay.outputs
    [seen] = database.rows(
        "SELECT min(num_actions) AS least, max(num_actions) AS most, min(choices) AS fewest,"
        " max(choices) AS many, sum(entropy) / nullif(sum(ln(choices)), 0) AS even"
        " FROM replay WHERE isfinite(entropy) AND choices > 0"
    )
    if seen["fewest"] is not None and seen["fewest"] >= space:
        found.append(
            f"K is {space}, the action space, in every row: mask-not-applied changes nothing, and"
            " slice-vs-gather and local-as-global-index are the same"
        )
    elif seen["least"] is not None and seen["least"] == seen["most"]:
        found.append(
            f"K is {seen['least']} in every row: indices out of range cannot betray a shift, and"
            " default-k-fallback with that K is slice-vs-gather"
        )
    if seen["many"] == 2:
        found.append(
            "no row has more than two choices: subset-order-lost, sampled-twice and action-shifted all"
            " give the log-prob of the other one"
        )
    if seen["even"] is not None and seen["even"] > NEARLY_UNIFORM:
        found.append(
            "the policy is nearly uniform: all log-probs are about -log K, and few bugs change them"
        )
    return found
