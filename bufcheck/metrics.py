"""How far the replayed log-probs lie from the stored ones: for the whole dump, and by part.

Rows with one choice always agree, so they are left out. The log-ratio is replayed minus stored, as in
PPO, where the replayed policy is the new one: k1, k2 and k3 estimate KL(stored ‖ replayed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bufcheck.database import Database

DIRECTION = (
    "ratio = replayed / stored; k1, k2, k3 estimate KL(stored || replayed) on the stored actions"
)
TIME_PARTS = 10
MOST_SIZES = 32
"""Beyond so many values of K, sizes are put together in powers of two."""
PARTS = {
    "by_agent": "agent_id",
    "by_version": "policy_version",
    "by_num_actions": "size",
    "by_time": "part",
}
# What is summed over rows, first by (agent, version) and by (K, time), each of which are few; sums of
# those are what the report needs.
_SETS = "(agent_id, policy_version), (size, part)"
_SUMS = {
    "count": "count(*)",
    "finite": "count(finite)",
    "errors": "sum(abs(finite))",
    "squares": "sum(finite * finite)",
    "residuals": "sum(finite)",
    "excess": "sum(ratio - 1 + finite)",
    "ratios": "sum(ratio)",
    "squared_ratios": "sum(ratio * ratio)",
    "pairs": "count(stored)",
    "x": "sum(stored)",
    "y": "sum(replayed)",
    "xx": "sum(stored * stored)",
    "yy": "sum(replayed * replayed)",
    "xy": "sum(stored * replayed)",
}
# What few rows have is counted apart, among those few.
_TAILS = {
    "wrong": "count(*) FILTER (wrong)",
    "above_100": "count(*) FILTER (finite < -ln(100))",
    "below_001": "count(*) FILTER (finite > ln(100))",
    "beyond_5": "count(*) FILTER (abs(finite) > 5)",
    "beyond_10": "count(*) FILTER (abs(finite) > 10)",
}
# Ratios beyond e^350 overflow when squared; DuckDB then says inf, and so does the report.
_MEASURES = """
    sum("count")::BIGINT AS rows,
    sum(wrong)::BIGINT AS mismatches,
    coalesce(sum(wrong), 0) / sum("count") AS mismatch_rate,
    (sum("count") - sum(finite))::BIGINT AS nonfinite,
    sum(errors) / sum(finite) AS error_mean,
    max(worst) AS error_max,
    sum(residuals) / sum(finite) AS k1,
    sum(squares) / sum(finite) / 2 AS k2,
    sum(excess) / sum(finite) AS k3,
    sum(squared_ratios) / sum(finite) - 1 AS chi2,
    sum(ratios) / sum(finite) * sum(ratios) / sum(squared_ratios) AS ess,
    (sum(xy) - sum(x) * sum(y) / sum(pairs))
        / sqrt(greatest(sum(xx) - sum(x) ** 2 / sum(pairs), 0))
        / sqrt(greatest(sum(yy) - sum(y) ** 2 / sum(pairs), 0)) AS pearson,
    sum(above_100)::BIGINT AS ratio_above_100,
    sum(below_001)::BIGINT AS ratio_below_001,
    sum(beyond_5)::BIGINT AS log_ratio_beyond_5,
    sum(beyond_10)::BIGINT AS log_ratio_beyond_10
"""
_JUDGED = """
    SELECT
        agent_id, policy_version, {size} AS size, {part} AS part,
        residual, abs(residual) > allowed AS wrong,
        CASE WHEN isfinite(residual) THEN residual END AS finite,
        exp(-finite) AS ratio,
        greatest(old_log_prob, log_prob) < 300 AND finite IS NOT NULL AS in_range,
        CASE WHEN in_range THEN exp(old_log_prob::DOUBLE) END AS stored,
        CASE WHEN in_range THEN exp(log_prob::DOUBLE) END AS replayed
    FROM replay
    WHERE residual IS NOT NULL AND choices IS DISTINCT FROM 1
"""
_SUMMED = f"""
    CREATE OR REPLACE TEMP TABLE sums AS
    SELECT
        agent_id, policy_version, size, part, grouping(size) = 1 AS by_whom,
        max(abs(residual)) AS worst, {", ".join(f'{sql} AS "{name}"' for name, sql in _SUMS.items())},
        {", ".join(f'NULL::BIGINT AS "{name}"' for name in _TAILS)}
    FROM ({{judged}})
    GROUP BY GROUPING SETS ({_SETS})
"""
_COUNTED = f"""
    INSERT INTO sums BY NAME
    SELECT
        agent_id, policy_version, size, part, grouping(size) = 1 AS by_whom,
        {", ".join(f'{sql} AS "{name}"' for name, sql in _TAILS.items())}
    FROM ({{judged}})
    WHERE wrong OR abs(finite) > ln(100)
    GROUP BY GROUPING SETS ({_SETS})
"""
_GROUPED = f"""
    SELECT
        agent_id::VARCHAR AS agent_id, policy_version, NULL AS size, NULL AS part,
        grouping(agent_id, policy_version) * 4 + 3 AS level, {_MEASURES}
    FROM sums
    WHERE by_whom
    GROUP BY GROUPING SETS ((), (agent_id), (policy_version))
    UNION ALL
    SELECT NULL, NULL, size, part, 12 + grouping(size, part), {_MEASURES}
    FROM sums
    WHERE NOT by_whom
    GROUP BY GROUPING SETS ((size), (part))
    ORDER BY level, agent_id, policy_version, size, part
"""
# The 99th percentile, to the hundredth of a decade: counting into bins is far quicker than a sketch of
# quantiles for every group. An error of 0 has a bin of its own, below all others.
_QUANTILES = """
    WITH binned AS (
        SELECT
            agent_id, policy_version, size, part, grouping(size) = 1 AS by_whom,
            CASE WHEN finite = 0 THEN -40000 ELSE floor(100 * log10(abs(finite))) END::INTEGER AS bin,
            count(*) AS rows
        FROM ({judged})
        WHERE finite IS NOT NULL
        GROUP BY GROUPING SETS ((agent_id, policy_version, bin), (size, part, bin))
    ),
    counted AS (
        SELECT
            agent_id, policy_version, NULL AS size, NULL AS part,
            grouping(agent_id, policy_version) * 4 + 3 AS level, bin, sum(rows) AS rows
        FROM binned
        WHERE by_whom
        GROUP BY GROUPING SETS ((bin), (agent_id, bin), (policy_version, bin))
        UNION ALL
        SELECT NULL, NULL, size, part, 12 + grouping(size, part), bin, sum(rows)
        FROM binned
        WHERE NOT by_whom
        GROUP BY GROUPING SETS ((size, bin), (part, bin))
    ),
    summed AS (
        SELECT
            *,
            sum(rows) OVER (grouped ORDER BY bin) AS upto,
            sum(rows) OVER grouped AS total
        FROM counted
        WINDOW grouped AS (PARTITION BY level, agent_id, policy_version, size, part)
    )
    SELECT
        agent_id::VARCHAR AS agent_id, policy_version, size, part, level,
        CASE WHEN min(bin) = -40000 THEN 0 ELSE pow(10, (min(bin) + 0.5) / 100) END AS error_p99
    FROM summed
    WHERE upto >= 0.99 * total
    GROUP BY ALL
"""
# A bit of `level` is 0 for the column that the row is grouped by.
_LEVELS = {0b0111: "by_agent", 0b1011: "by_version", 0b1101: "by_num_actions", 0b1110: "by_time"}
# Where masked actions keep a chance, a row may have none that is legal.
_POWER_OF_TWO = "CASE WHEN choices > 0 THEN (2 ** floor(log2(choices)))::BIGINT ELSE 0 END"
_COUNTS = (
    "rows",
    "mismatches",
    "nonfinite",
    "ratio_above_100",
    "ratio_below_001",
    "log_ratio_beyond_5",
    "log_ratio_beyond_10",
)


def of_replay(database: Database) -> dict[str, Any]:
    """The report's `metrics`."""
    [extent] = database.rows(
        "SELECT max(timestep) AS last, count(DISTINCT choices) AS sizes FROM replay"
        " WHERE timestep IS NOT NULL OR choices IS NOT NULL"
    )
    width = max(1, -(-((extent["last"] or 0) + 1) // TIME_PARTS))
    size = "choices" if extent["sizes"] <= MOST_SIZES else _POWER_OF_TWO
    judged = _JUDGED.format(size=size, part=f"timestep // {width}")
    found: dict[str, Any] = {"direction": DIRECTION, "all": {}, **{name: {} for name in PARTS}}
    p99 = {_key(row): row["error_p99"] for row in database.rows(_QUANTILES.format(judged=judged))}
    database.execute(_SUMMED.format(judged=judged))
    database.execute(_COUNTED.format(judged=judged))
    for row in database.rows(_GROUPED):
        measures = {k: _number(k, v) for k, v in row.items() if k not in {*PARTS.values(), "level"}}
        # The middle of a bin may lie above all that is in it; a NaN is never the lesser here.
        measures["error_p99"] = min(p99.get(_key(row), float("nan")), measures["error_max"])
        part = _LEVELS.get(row["level"])
        if part is None:
            found["all"] = measures
        elif (label := row[PARTS[part]]) is not None:
            found[part][_label(part, label, width, size)] = measures
    return found


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["level"], *(row[column] for column in PARTS.values()))


def _number(name: str, value: Any) -> Any:
    """DuckDB says NULL of what it has no rows for; of a table it knows to be empty, even for counts."""
    if value is not None:
        return value
    return 0 if name in _COUNTS else float("nan")


def _label(part: str, value: Any, width: int, size: str) -> str:
    if part == "by_time":
        return f"{value * width}-{(value + 1) * width - 1}"
    if part == "by_num_actions" and size != "choices" and value:
        return f"{value}-{2 * value - 1}"
    return str(value)


def decades(database: Database) -> list[dict[str, Any]]:
    """Which share of the rows with a choice sits in each decade of |stored − replayed|."""
    rows = database.rows(
        """
        SELECT
            CASE
                WHEN residual = 0 THEN -400
                WHEN isfinite(residual) THEN floor(log10(abs(residual)))::INTEGER
                ELSE 400
            END AS decade,
            count(*) AS rows,
            count(*) / sum(count(*)) OVER () AS share
        FROM replay
        WHERE residual IS NOT NULL AND choices IS DISTINCT FROM 1
        GROUP BY decade
        ORDER BY decade
        """
    )
    names = {-400: "0", 400: "not finite"}
    return [
        {
            "error": names.get(row["decade"], f"1e{row['decade']} to 1e{row['decade'] + 1}"),
            "rows": row["rows"],
            "share": row["share"],
        }
        for row in rows
    ]
