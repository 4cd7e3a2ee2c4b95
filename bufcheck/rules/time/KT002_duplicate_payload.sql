/*
code = "KT002"
name = "duplicate-payload"
severity = "warning"
scope = "dump"
needs = ["digest.state_hash", "digest.old_log_prob", "digest.episode_id", "digest.timestep", "digest.agent_id"]
summary = "Rows repeat an earlier row's state, action, log-prob and reward under another key, more often than chance allows."
why = "The data is smaller than it looks: gradients of cloned rollouts add up as if they were independent evidence."
cause = "Workers that share a random seed, or a rollout stored again under new episode ids."
remedy = "Seed every environment copy and every sampler differently. A deterministic environment that starts in one state repeats rightly."
message = "same state, action, log-prob and reward as row {original}"
[parameters]
surprise = 6.9
least_rows = 3
*/
-- States may recur rightly. So the test asks: where the same agent meets a state for the second time,
-- how often does it draw the same action again, and how often should it, by its own probability? It
-- runs on the states whose hash falls into a sample of about 100,000 rows.
WITH payloads AS NOT MATERIALIZED (
    SELECT
        row_id,
        episode_id,
        timestep,
        agent_id,
        state_hash,
        least(exp(old_log_prob), 1) * CASE WHEN action_hash IS NULL THEN 1 ELSE 0 END AS chance,
        hash(subset_hash, mask_hash, action_index, action_hash, old_log_prob, reward, value) AS payload
    FROM digest
    WHERE state_hash IS NOT NULL AND isfinite(old_log_prob)
),
recurring AS (
    SELECT state_hash FROM digest WHERE state_hash <= $sample_below GROUP BY state_hash HAVING count(*) > 1
),
meetings AS (
    SELECT
        payload,
        row_number() OVER met AS meeting,
        lag(payload) OVER met AS payload_before,
        lag(chance) OVER met AS chance_before,
        lag(episode_id) OVER met = episode_id AND lag(timestep) OVER met = timestep AS same_key
    FROM payloads SEMI JOIN recurring USING (state_hash)
    WINDOW met AS (PARTITION BY agent_id, state_hash ORDER BY row_id)
),
tested AS (
    SELECT
        count(*) AS meetings,
        count(*) FILTER (WHERE payload = payload_before) AS repeated,
        repeated / nullif(count(*), 0) AS observed,
        greatest(avg(chance_before), 1e-6) AS expected
    FROM meetings
    WHERE meeting = 2 AND chance_before < 0.999 AND NOT coalesce(same_key, false)
),
-- Hoeffding: the chance of so large a share is at most exp(-n KL(observed || expected)).
fired AS MATERIALIZED (
    SELECT
        repeated >= $least_rows
        AND observed > expected
        AND meetings * (
            observed * ln(observed / expected)
            + CASE WHEN observed < 1 THEN (1 - observed) * ln((1 - observed) / (1 - expected)) ELSE 0 END
        ) > $surprise AS yes
    FROM tested
),
first_seen AS (
    SELECT agent_id, state_hash, payload, min(row_id) AS original
    FROM payloads
    WHERE (SELECT yes FROM fired)
    GROUP BY ALL
    HAVING count(*) > 1
)
SELECT later.row_id, original
FROM payloads AS later
JOIN first_seen USING (agent_id, state_hash, payload)
JOIN digest AS earlier ON earlier.row_id = original
WHERE later.row_id <> original
    AND (later.episode_id, later.timestep) IS DISTINCT FROM (earlier.episode_id, earlier.timestep)
    AND (SELECT yes FROM fired)
