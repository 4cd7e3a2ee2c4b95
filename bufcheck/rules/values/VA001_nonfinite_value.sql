/*
code = "VA001"
name = "nonfinite-value"
severity = "error"
scope = "row"
removes = true
needs = ["digest.old_log_prob | digest.state_hash | digest.reward | digest.value | digest.advantage | digest.return"]
summary = "A number is NaN or infinite."
why = "One NaN in a mini-batch makes the loss NaN and, one optimiser step later, every weight."
cause = "All actions masked, log of zero, a division by a zero standard deviation, or weights that had already diverged."
remedy = "Find the first step it appears at; guard the logarithm or the division there rather than replacing the value."
message = "{what}"
*/
-- bootstrap_value counts only where it is read: on truncated rows, and on the last stored row of an
-- (episode, agent) that is not terminated. A logit may be -infinity: that is how masks are written.
-- NaN counts as greater than infinity; and a comparison DuckDB can settle by a column's largest value.
WITH suspects AS (
    SELECT row_id, episode_id, agent_id, timestep, bootstrap_value, terminated, truncated
    FROM digest
    WHERE NOT isfinite(bootstrap_value)
),
ends AS (
    SELECT episode_id, agent_id, max(timestep) AS last_step
    FROM digest SEMI JOIN suspects USING (episode_id, agent_id)
    GROUP BY ALL
),
judged AS (
    SELECT
        row_id,
        concat_ws(
            ', ',
            CASE WHEN NOT isfinite(old_log_prob) THEN 'old_log_prob is ' || old_log_prob END,
            CASE WHEN NOT isfinite(new_log_prob) THEN 'new_log_prob is ' || new_log_prob END,
            CASE WHEN NOT isfinite(reward) THEN 'reward is ' || reward END,
            CASE WHEN NOT isfinite(value) THEN 'value is ' || value END,
            CASE WHEN NOT isfinite(advantage) THEN 'advantage is ' || advantage END,
            CASE WHEN NOT isfinite("return") THEN 'return is ' || "return" END,
            CASE WHEN NOT isfinite(entropy) THEN 'entropy is ' || entropy END,
            CASE WHEN state_nonfinite THEN 'state_embed is not finite' END,
            CASE WHEN action_nonfinite THEN 'action is not finite' END,
            CASE WHEN action_mean_nonfinite THEN 'action_mean is not finite' END,
            CASE WHEN action_std_nonfinite THEN 'action_std is not finite' END,
            CASE WHEN logits_nonfinite THEN 'a logit is NaN or +infinity' END
        ) AS what
    FROM digest
    WHERE abs(old_log_prob) >= 'infinity'
        OR abs(new_log_prob) >= 'infinity'
        OR abs(reward) >= 'infinity'
        OR abs(value) >= 'infinity'
        OR abs(advantage) >= 'infinity'
        OR abs("return") >= 'infinity'
        OR abs(entropy) >= 'infinity'
        OR state_nonfinite
        OR action_nonfinite
        OR action_mean_nonfinite
        OR action_std_nonfinite
        OR logits_nonfinite
),
bootstrap AS (
    SELECT row_id, 'bootstrap_value is ' || bootstrap_value AS what
    FROM suspects LEFT JOIN ends USING (episode_id, agent_id)
    WHERE CASE
        WHEN truncated THEN coalesce($advantage_truncation, 'bootstrap_value') = 'bootstrap_value'
        ELSE timestep = last_step AND NOT coalesce(terminated, false)
    END
)
SELECT row_id, string_agg(what, ', ' ORDER BY what DESC) AS what
FROM (SELECT row_id, what FROM judged UNION ALL SELECT row_id, what FROM bootstrap)
GROUP BY row_id
