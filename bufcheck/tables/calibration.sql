/*
meaning = "how likely the stored actions are to the actor, against how likely its own samples would be"
[columns]
agent_id = "the agent"
policy_version = "the version; both are null for the pooled row"
pooled = "true for the row about all of them together"
rows = "rows with a choice that were replayed"
z = "sum of (log-prob - its expectation), in standard deviations of that sum"
skew = "skewness of that sum under the actor's own samples"
agreeing = "share of the rows whose stored log-prob the actor confirms"
judged = "whether z can be judged: nearly all rows agree, and there are enough of them for the sum to be nearly normal"
*/
WITH choices AS (
    SELECT
        agent_id,
        policy_version,
        log_prob::DOUBLE + entropy AS surplus,
        variance,
        skew,
        abs(residual) <= allowed AS agrees
    FROM replay
    WHERE choices IS DISTINCT FROM 1 AND isfinite(log_prob) AND isfinite(entropy) AND variance > 0
),
summed AS (
    SELECT
        agent_id,
        policy_version,
        grouping(agent_id) = 1 AS pooled,
        count(*) AS rows,
        sum(surplus) / sqrt(sum(variance)) AS z,
        sum(skew) / pow(sum(variance), 1.5) AS skew,
        avg(agrees::INTEGER) AS agreeing
    FROM choices
    GROUP BY GROUPING SETS ((agent_id, policy_version), ())
)
SELECT *, rows >= 30 AND agreeing >= 0.99 AND abs(skew) <= 0.3 AS judged
FROM summed
-- One group alone is the whole.
WHERE NOT pooled OR (SELECT count(*) FROM summed) > 2
