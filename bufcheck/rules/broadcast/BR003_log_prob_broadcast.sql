/*
code = "BR003"
name = "log-prob-broadcast"
severity = "warning"
scope = "dump"
needs = ["digest.old_log_prob", "digest.state_hash", "digest.episode_id", "digest.timestep", "digest.agent_id"]
summary = "The same log-prob stands at all agents of a step, or in a block of rows, though their contexts differ."
why = "Ratios of all but one of these samples are wrong; a joint log-prob in every row counts each agent's action several times."
cause = "An [N, 1] tensor against an [N] one, a mean over the batch, or the joint log-prob of a step stored for each agent."
remedy = "Check shapes before arithmetic ([N] with [N]); store each agent's own log-prob."
message = "old_log_prob {old_log_prob}: {what}"
[parameters]
surprise = 13.8
least_rows = 4
*/
SELECT
    row_id,
    any_value(old_log_prob) AS old_log_prob,
    string_agg(DISTINCT what, '; ' ORDER BY what) AS what
FROM (
    SELECT row_id, old_log_prob, 'the same at all ' || rows || ' agents of the step' AS what
    FROM digest JOIN steps USING (episode_id, timestep)
    WHERE log_prob_shared AND agent_min <> agent_max
        AND legal_actions IS DISTINCT FROM 1
        AND (SELECT surprise FROM sharing WHERE quantity = 'log-prob') > $surprise
    UNION ALL
    SELECT row_id, old_log_prob, 'the same in rows ' || first_row || ' to ' || last_row AS what
    FROM digest JOIN runs ON row_id BETWEEN first_row AND last_row
    WHERE quantity = 'log-prob' AND length >= $least_rows AND surprise > $surprise
)
GROUP BY row_id
