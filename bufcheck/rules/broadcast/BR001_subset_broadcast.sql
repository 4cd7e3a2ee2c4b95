/*
code = "BR001"
name = "subset-broadcast"
severity = "warning"
scope = "dump"
applies = "categorical"
needs = ["digest.subset_hash", "digest.episode_id", "digest.timestep", "digest.agent_id"]
legal_if = ["agents_shared_subset"]
summary = "The same subset stands at all agents of a step, or in a block of rows, more often than chance gives."
why = "One agent's options were copied to the others: their log-probs are renormalised over actions they were never offered."
cause = "A subset fetched once per step and broadcast, or a missing agent dimension."
remedy = "Store each agent's own subset. If agents really share it, declare agents.shared_subset."
message = "{what}"
[parameters]
surprise = 13.8
least_rows = 4
*/
SELECT row_id, string_agg(DISTINCT what, '; ' ORDER BY what) AS what
FROM (
    SELECT row_id, 'all ' || agents || ' agents of the step have this subset' AS what
    FROM (
        SELECT
            row_id,
            count(DISTINCT agent_id) OVER step + count(*) OVER step - count(agent_id) OVER step AS agents
        FROM digest
        SEMI JOIN (
            SELECT episode_id, timestep
            FROM digest
            WHERE (SELECT surprise FROM sharing WHERE quantity = 'subset') > $surprise
            GROUP BY episode_id, timestep
            HAVING min(subset_hash) = max(subset_hash) AND count(subset_hash) = count(*)
        ) USING (episode_id, timestep)
        WINDOW step AS (PARTITION BY episode_id, timestep)
    )
    WHERE agents > 1
    UNION ALL
    SELECT
        unnest(generate_series(first_row, last_row)) AS row_id,
        'rows ' || first_row || ' to ' || last_row || ' have the same subset' AS what
    FROM runs
    WHERE quantity = 'subset' AND length >= $least_rows AND surprise > $surprise
)
GROUP BY row_id
