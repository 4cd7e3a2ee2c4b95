/*
meaning = "stretches of consecutive rows of a file that hold the same value, and how surprising they are"
[columns]
quantity = "state, subset, log-prob or advantage"
first_row = "first row of the stretch"
last_row = "last row of the stretch"
length = "rows in it"
surprise = "-ln of the expected number of stretches this long, were repeats independent at the rate seen"
*/
-- States and subsets may persist for good reasons, so their own repeat rate is the yardstick, however
-- high. Log-probs and advantages of different samples hardly ever repeat: their rate counts as at
-- most one half, or a column that is constant throughout would excuse itself.
WITH candidates AS MATERIALIZED (
    SELECT
        row_id, state_repeats, subset_repeats, log_prob_repeats, advantage_repeats,
        legal_actions, old_log_prob, advantage
    FROM digest
    WHERE state_repeats OR subset_repeats OR log_prob_repeats OR advantage_repeats
),
repeated AS (
    SELECT 'state' AS quantity, row_id, 1.0 AS at_most FROM candidates WHERE state_repeats
    UNION ALL
    SELECT 'subset', row_id, 1.0 FROM candidates WHERE subset_repeats
    UNION ALL
    -- At 0 and at -log K a policy is certain or uniform: placeholder-log-prob judges those.
    SELECT 'log-prob', row_id, 0.5 FROM candidates
    WHERE log_prob_repeats AND NOT coalesce(state_repeats, false) AND legal_actions IS DISTINCT FROM 1
        AND abs(old_log_prob) > 1e-5
        AND coalesce(abs(old_log_prob + ln(greatest(legal_actions, 1))) > 1e-6, true)
    UNION ALL
    SELECT 'advantage', row_id, 0.5 FROM candidates WHERE advantage_repeats AND advantage <> 0
),
rated AS (
    SELECT
        quantity,
        least(count(*) / $rows, max(at_most)) AS rate
    FROM repeated
    GROUP BY quantity
),
islands AS (
    SELECT
        quantity,
        row_id,
        row_id - row_number() OVER (PARTITION BY quantity ORDER BY row_id) AS island
    FROM repeated
),
stretches AS (
    SELECT
        quantity,
        min(row_id) - 1 AS first_row,
        max(row_id) AS last_row,
        count(*) + 1 AS length
    FROM islands
    GROUP BY quantity, island
)
SELECT
    quantity,
    first_row,
    last_row,
    length,
    -(length - 1) * ln(rate) - ln($rows) AS surprise
FROM stretches JOIN rated USING (quantity)
