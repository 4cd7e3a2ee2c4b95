/*
code = "VA004"
name = "placeholder-log-prob"
severity = "error"
scope = "dump"
removes = true
applies = "categorical"
needs = ["digest.old_log_prob", "digest.legal_actions", "digest.state_hash"]
summary = "Log-probs are exactly 0, one constant, or exactly -log K more often than chance allows."
why = "A stand-in value turns the importance ratio into an arbitrary number; a 0 makes every update look like a step away from a certain action."
cause = "A missing log-prob was filled in, a buffer was preallocated with zeros, or a uniform fallback policy acted without saying so."
remedy = "Store the log-prob at the moment of sampling, and drop a sample that has none. A policy that truly is uniform or certain is told apart by storing `entropy`."
message = "old_log_prob is {old_log_prob} ({pattern}) with {legal_actions} legal actions"
[parameters]
surprise = 13.8
*/
-- `surprise` is -ln of the chance that a pattern is an accident: 13.8 is one in a million.
-- Each pattern is compared with what lies next to it. A policy that is sure of itself leaves many
-- log-probs near 0, not only at 0; a nearly uniform one leaves many near -log K; and 100,000 rows
-- are enough to see a constant. A stored entropy that agrees with the pattern clears the row, and so
-- does an actor that gives this very log-prob.
WITH judged AS NOT MATERIALIZED (
    SELECT row_id, old_log_prob, num_actions, legal_actions, state_hash, entropy
    FROM digest
    WHERE legal_actions > 1 AND isfinite(old_log_prob) AND confirmed IS NOT TRUE
),
-- The few rows near 0 or near -log K. Under coarse rounding, near says nothing about exactly.
near AS MATERIALIZED (
    SELECT
        row_id,
        old_log_prob,
        legal_actions,
        old_log_prob = 0 AS is_zero,
        least(abs(old_log_prob + ln(legal_actions)), abs(old_log_prob + ln(CASE WHEN num_actions > 1 THEN num_actions ELSE legal_actions END)))
            AS from_uniform,
        coalesce(entropy < 1e-4, false) AS certain,
        coalesce(abs(entropy - ln(legal_actions)) < $entropy_tolerance, false) AS uniform
    FROM judged
    WHERE old_log_prob > CASE WHEN $unit_roundoff > 1e-6 THEN -0.5 ELSE -1e-3 END
        OR $unit_roundoff <= 1e-6
        AND (
            abs(old_log_prob + ln(legal_actions)) <= 1e-4
            OR num_actions > 1 AND num_actions <> legal_actions AND abs(old_log_prob + ln(num_actions)) <= 1e-4
        )
),
counted AS (
    SELECT
        count(*) FILTER (WHERE is_zero AND NOT certain) AS zeros,
        count(*) FILTER (WHERE NOT is_zero AND abs(old_log_prob) < 1e-5) AS closest,
        count(*) FILTER (WHERE old_log_prob <= -1e-5 AND old_log_prob > -1e-3) AS closer,
        -- Log-probs that thin out by some factor from there to here thin out by it once more.
        -- Coarse rounding takes whatever is near 0 to 0: zeros are then held against all of those.
        CASE
            WHEN $unit_roundoff > 1e-6 THEN 0.01 + count(*) FILTER (WHERE NOT is_zero)
            ELSE 0.01 + pow(closest + 0.1, 2) / (closer + 1)
        END AS zeros_expected,
        -- A policy whose log-probs do not thin out on the way to 0 is sure enough to round to it.
        closest > 0 AND closest + 2 * sqrt(closest) >= closer - 2 * sqrt(closer) AS sure,
        count(*) FILTER (WHERE from_uniform <= 1e-6 AND NOT uniform) AS uniforms,
        0.01 + count(*) FILTER (WHERE from_uniform > 1e-6 AND from_uniform <= 1e-4) / 99
            AS uniforms_expected
    FROM near
),
sampled AS MATERIALIZED (
    SELECT old_log_prob, state_hash
    FROM judged
    WHERE hash(row_id) <= $sample_below
        AND abs(old_log_prob) > 1e-3  -- nearer to 0, log-probs come in steps of 2^-23 and coincide
        AND NOT (
            $unit_roundoff <= 1e-6
            AND least(
                abs(old_log_prob + ln(legal_actions)),
                abs(old_log_prob + ln(CASE WHEN num_actions > 1 THEN num_actions ELSE legal_actions END))
            ) <= 1e-6
        )
),
frequent AS (
    SELECT old_log_prob AS constant, count(DISTINCT state_hash) AS observed
    FROM sampled
    GROUP BY old_log_prob
    HAVING count(*) >= 4
    ORDER BY observed DESC, constant
    LIMIT 20
),
-- How many rows a value would get if those within 1 % of it were spread over the floats there are.
constants AS (
    SELECT
        constant,
        any_value(observed) AS observed,
        0.01 + count(old_log_prob) * $unit_roundoff * 100 AS expected
    FROM frequent
    LEFT JOIN sampled
        ON old_log_prob <> constant
        AND old_log_prob BETWEEN least(0.99 * constant, 1.01 * constant)
            AND greatest(0.99 * constant, 1.01 * constant)
    GROUP BY constant
),
atoms AS (
    SELECT constant
    FROM constants
    WHERE observed > expected
        AND observed * ln(observed / expected) - observed + expected
            > $surprise + ln((SELECT count(*) FROM sampled))
),
-- Several atoms are a policy that does not look at its state, not a stand-in.
stand_in AS (SELECT any_value(constant) AS constant FROM atoms HAVING count(*) = 1)
SELECT row_id, old_log_prob, legal_actions, 'exactly 0' AS pattern
FROM near, counted
WHERE is_zero AND NOT certain AND NOT sure AND zeros > zeros_expected
    AND zeros * ln(zeros / zeros_expected) - zeros + zeros_expected > $surprise
UNION ALL
SELECT row_id, old_log_prob, legal_actions, '-log K' AS pattern
FROM near, counted
WHERE from_uniform <= 1e-6 AND NOT uniform AND NOT is_zero AND uniforms > uniforms_expected
    AND uniforms * ln(uniforms / uniforms_expected) - uniforms + uniforms_expected > $surprise
    AND $unit_roundoff <= 1e-6
UNION ALL
SELECT row_id, old_log_prob, legal_actions, 'one constant' AS pattern
FROM digest JOIN stand_in ON old_log_prob = constant
WHERE legal_actions > 1
    -- Asked of these rows alone: of all rows, it takes longer than all the rest.
    AND CASE WHEN old_log_prob = constant THEN confirmed IS NOT TRUE END
    AND NOT (
        $unit_roundoff <= 1e-6
        AND least(
            abs(old_log_prob + ln(legal_actions)),
            abs(old_log_prob + ln(CASE WHEN num_actions > 1 THEN num_actions ELSE legal_actions END))
        ) <= 1e-6
    )
