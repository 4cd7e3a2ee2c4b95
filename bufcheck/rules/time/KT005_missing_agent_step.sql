/*
code = "KT005"
name = "missing-agent-step"
severity = "warning"
scope = "episode"
needs = ["digest.episode_id", "digest.timestep", "digest.agent_id"]
legal_if = ["agents_turn_based", "cleaned_by_row"]
summary = "An agent lacks a step that other agents of its episode have."
why = "Joint batches are padded or shifted to fit, and one agent's row is scored with another's."
cause = "An agent's rows were filtered or lost, or it left the episode without a terminated or truncated mark."
remedy = "Store a row for every living agent at every step, and mark the step at which one leaves. Declare agents.turn_based where they take turns."
message = "agent {agent_id} {what}"
*/
-- A hole between two of the agent's own steps that others filled; or, where ends are marked, an agent
-- that stops unmarked while its episode goes on.
WITH holes AS (
    SELECT episode_id, agent_id
    FROM episodes
    WHERE last_step::HUGEINT - first_step + 1 > steps
),
agent_steps AS (
    SELECT episode_id, agent_id, timestep, min(row_id) AS row_id
    FROM digest SEMI JOIN holes USING (episode_id, agent_id)
    WHERE timestep IS NOT NULL
    GROUP BY ALL
),
ordered AS (
    SELECT
        row_id,
        episode_id,
        agent_id,
        timestep,
        lag(timestep) OVER (PARTITION BY episode_id, agent_id ORDER BY timestep) AS before
    FROM agent_steps
),
taken AS (
    SELECT DISTINCT episode_id, timestep FROM digest SEMI JOIN holes USING (episode_id)
),
skipped AS (
    SELECT ordered.row_id, agent_id, before, ordered.timestep, count(*) AS missing
    FROM ordered
    JOIN taken
        ON taken.episode_id = ordered.episode_id
        AND taken.timestep > before AND taken.timestep < ordered.timestep
    WHERE ordered.timestep::HUGEINT - before > 1
    GROUP BY ALL
),
lasting AS (
    SELECT episode_id, max(last_step) AS last_step FROM episodes GROUP BY episode_id
),
left_early AS (
    SELECT episode_id, agent_id, episodes.last_step, lasting.last_step AS episode_end
    FROM episodes JOIN lasting USING (episode_id)
    WHERE episodes.last_step < lasting.last_step
        AND first_done IS NULL
        AND (SELECT bool_or(readable) FROM columns WHERE name IN ('terminated', 'truncated'))
),
last_rows AS (
    SELECT min(row_id) AS row_id, episode_id, agent_id, left_early.last_step, episode_end
    FROM digest JOIN left_early USING (episode_id, agent_id)
    WHERE timestep = left_early.last_step
    GROUP BY ALL
)
SELECT
    row_id,
    agent_id,
    'jumps from step ' || before || ' to ' || timestep || ' over ' || missing || ' that others have'
        AS what
FROM skipped
UNION ALL
SELECT
    row_id,
    agent_id,
    'stops unmarked at step ' || last_step || ', its episode goes on to ' || episode_end AS what
FROM last_rows
