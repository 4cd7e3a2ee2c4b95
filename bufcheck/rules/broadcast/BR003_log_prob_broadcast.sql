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
    SELECT row_id, old_log_prob, 'the same at all ' || agents || ' agents of the step' AS what
    FROM (
        SELECT
            row_id, old_log_prob, legal_actions, confirmed,
            count(DISTINCT agent_id) OVER step + count(*) OVER step - count(agent_id) OVER step AS agents
        FROM digest
        SEMI JOIN (
            SELECT episode_id, timestep
            FROM digest
            WHERE (SELECT surprise FROM sharing WHERE quantity = 'log-prob') > $surprise
            GROUP BY episode_id, timestep
            HAVING min(old_log_prob) FILTER (WHERE legal_actions IS DISTINCT FROM 1)
                = max(old_log_prob) FILTER (WHERE legal_actions IS DISTINCT FROM 1)
                AND count(*) FILTER (WHERE legal_actions IS DISTINCT FROM 1) > 1
                AND count(*) FILTER (WHERE legal_actions IS DISTINCT FROM 1 AND old_log_prob IS NULL) = 0
                AND NOT (
                    coalesce(min(state_hash) = max(state_hash), false) AND count(state_hash) = count(*)
                    AND coalesce(min(subset_hash) = max(subset_hash), true)
                    AND coalesce(min(action_index) = max(action_index), true)
                    AND coalesce(min(action_hash) = max(action_hash), true)
                )
        ) USING (episode_id, timestep)
        WINDOW step AS (PARTITION BY episode_id, timestep)
    )
    WHERE agents > 1 AND legal_actions IS DISTINCT FROM 1 AND confirmed IS NOT TRUE
    UNION ALL
    SELECT row_id, old_log_prob, 'the same in rows ' || first_row || ' to ' || last_row AS what
    FROM (
        SELECT unnest(generate_series(first_row, last_row)) AS row_id, first_row, last_row
        FROM runs
        WHERE quantity = 'log-prob' AND length >= $least_rows AND surprise > $surprise
    ) LEFT JOIN digest USING (row_id)  -- or every row would be asked first whether it is confirmed
    WHERE confirmed IS NOT TRUE
)
GROUP BY row_id
