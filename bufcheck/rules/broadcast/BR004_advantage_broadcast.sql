/*
code = "BR004"
name = "advantage-broadcast"
severity = "warning"
scope = "dump"
needs = ["digest.advantage", "digest.episode_id", "digest.timestep", "digest.agent_id"]
legal_if = ["agents_shared_advantage"]
summary = "The same advantage stands at all agents of a step, or in a block of rows."
why = "Every action of the block is pushed equally: credit is lost, and a batch mean pushes all of them the same way."
cause = "An [N, 1] tensor against an [N] one, or one agent's advantage used for all."
remedy = "Check shapes before arithmetic. If agents share an advantage, declare agents.shared_advantage."
message = "advantage {advantage}: {what}"
[parameters]
surprise = 13.8
least_rows = 4
*/
-- One advantage for a whole episode is a method (group-relative advantages), not an accident.
SELECT
    row_id,
    any_value(advantage) AS advantage,
    string_agg(DISTINCT what, '; ' ORDER BY what) AS what
FROM (
    SELECT row_id, advantage, 'the same at all ' || agents || ' agents of the step' AS what
    FROM (
        SELECT
            row_id, advantage,
            count(DISTINCT agent_id) OVER step + count(*) OVER step - count(agent_id) OVER step AS agents
        FROM digest
        SEMI JOIN (
            SELECT episode_id, timestep
            FROM digest
            WHERE (SELECT surprise FROM sharing WHERE quantity = 'advantage') > $surprise
            GROUP BY episode_id, timestep
            HAVING min(advantage) = max(advantage) AND min(advantage) <> 0
                AND count(advantage) = count(*)
        ) USING (episode_id, timestep)
        WINDOW step AS (PARTITION BY episode_id, timestep)
    )
    WHERE agents > 1
    UNION ALL
    SELECT row_id, advantage, 'the same in rows ' || first_row || ' to ' || last_row AS what
    FROM (
        SELECT unnest(generate_series(runs.first_row, last_row)) AS row_id, runs.first_row, last_row
        FROM runs
        JOIN digest AS opening ON opening.row_id = runs.first_row
        JOIN digest AS closing ON closing.row_id = last_row
        LEFT JOIN episodes AS of_first ON of_first.episode_id = opening.episode_id
            AND of_first.agent_id = opening.agent_id
        LEFT JOIN episodes AS of_last ON of_last.episode_id = closing.episode_id
            AND of_last.agent_id = closing.agent_id
        WHERE quantity = 'advantage' AND length >= $least_rows AND surprise > $surprise
            AND NOT coalesce(
                of_first.advantage_constant AND of_last.advantage_constant
                AND (
                    opening.episode_id = closing.episode_id
                    OR (SELECT min(advantage) <> max(advantage) FROM digest)
                ),
                false
            )
    ) JOIN digest USING (row_id)
)
GROUP BY row_id
