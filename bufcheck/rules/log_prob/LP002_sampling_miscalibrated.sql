/*
code = "LP002"
name = "sampling-miscalibrated"
severity = "warning"
scope = "dump"
needs = ["replay.log_prob", "digest.old_log_prob"]
unless = """
SELECT CASE
    WHEN NOT coalesce(bool_or(judged AND pooled), false)
        AND coalesce(sum(rows) FILTER (judged AND NOT pooled), 0)
            < 0.9 * coalesce(sum(rows) FILTER (NOT pooled), 1)
    THEN format(
        'needs more rows with a choice whose log-prob the actor confirms: {:,} of {:,} could be judged',
        coalesce(sum(rows) FILTER (judged AND NOT pooled), 0)::BIGINT,
        coalesce(sum(rows) FILTER (NOT pooled), 0)::BIGINT
    )
END
FROM calibration
"""
summary = "The actions are not what the actor would sample, although their log-probs are right."
why = "Log-probs of the policy on actions of another distribution make every importance ratio 1 and every one of them wrong: the gradient is that of a policy that never acted."
cause = "Sampling at a temperature, with top-k, top-p or epsilon-greedy, or taking the argmax, while storing the log-prob of the plain policy."
remedy = "Store the log-prob of the distribution that was sampled from, or declare policy.temperature. Act greedily only in evaluation."
message = "{who}: z = {z} over {rows} rows ({low} to {high} is expected): actions {tendency}"
[parameters]
false_alarms = 1e-4
*/
-- z lies within these bounds in all but one of 1 / $false_alarms clean dumps: a Chernoff bound, shared
-- by all groups that are judged, and shifted by the skew of the sum, as log-probs are skewed.
WITH bounded AS (
    SELECT *, sqrt(2 * ln(2 * count(*) OVER () / $false_alarms)) AS reach
    FROM calibration
    WHERE judged
),
judged AS (
    SELECT
        *,
        -reach + skew * (reach * reach - 1) / 6 AS low,
        reach + skew * (reach * reach - 1) / 6 AS high
    FROM bounded
)
SELECT
    NULL::BIGINT AS row_id,
    CASE
        WHEN pooled THEN 'all rows'
        ELSE concat_ws(', ', 'agent ' || agent_id::VARCHAR, 'version ' || policy_version::VARCHAR)
    END AS who,
    printf('%+.1f', z) AS z,
    rows,
    printf('%+.1f', low) AS low,
    printf('%+.1f', high) AS high,
    CASE
        WHEN z > 0 THEN 'are likelier than samples, as with a temperature below 1, top-k, top-p or argmax'
        ELSE 'are less likely than samples, as with a temperature above 1 or random exploration'
    END AS tendency
FROM judged
WHERE z NOT BETWEEN low AND high
ORDER BY abs(judged.z) DESC
