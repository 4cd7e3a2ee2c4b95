/*
meaning = "how often all agents of a step hold the same value, against how often chance would do it"
[columns]
quantity = "state, subset, log-prob or advantage"
observed = "steps of several agents where all hold the same, in the sample"
expected = "how many there would be, were values dealt to agents at random"
surprise = "-ln of the chance of so many (Chernoff bound of the Poisson tail); 0 where not above expectation"
*/
-- Chance is measured on the dump itself: how often rows drawn at random coincide. Of a dump of over
-- 100,000 rows a sample of rows, and of steps, is enough for that.
WITH sampled AS MATERIALIZED (
    SELECT state_hash, subset_hash, old_log_prob, advantage, legal_actions
    FROM digest
    WHERE hash(row_id) <= $sample_below
),
occurring AS (
    SELECT 'state' AS quantity, count(*) AS times FROM sampled WHERE state_hash IS NOT NULL GROUP BY state_hash
    UNION ALL
    SELECT 'subset', count(*) FROM sampled WHERE subset_hash IS NOT NULL GROUP BY subset_hash
    UNION ALL
    SELECT 'log-prob', count(*) FROM sampled
    WHERE legal_actions IS DISTINCT FROM 1 AND old_log_prob IS NOT NULL GROUP BY old_log_prob
    UNION ALL
    SELECT 'advantage', count(*) FROM sampled WHERE advantage <> 0 GROUP BY advantage
),
spectrum AS (SELECT quantity, times, count(*) AS vals FROM occurring GROUP BY ALL),
drawn AS (SELECT quantity, sum(times * vals) AS total FROM spectrum GROUP BY quantity),
common AS (
    SELECT
        count(DISTINCT agent_id) + count(*) - count(agent_id) AS agents,
        min(state_hash) = max(state_hash) AND count(state_hash) = count(*) AS state,
        min(subset_hash) = max(subset_hash) AND count(subset_hash) = count(*) AS subset,
        -- Where one action was possible, log-prob 0 says nothing; and one actor in one context gives
        -- one log-prob rightly.
        min(old_log_prob) FILTER (WHERE legal_actions IS DISTINCT FROM 1)
        = max(old_log_prob) FILTER (WHERE legal_actions IS DISTINCT FROM 1)
        AND count(*) FILTER (WHERE legal_actions IS DISTINCT FROM 1) > 1
        AND count(*) FILTER (WHERE legal_actions IS DISTINCT FROM 1 AND old_log_prob IS NULL) = 0
        AND NOT (
            coalesce(min(state_hash) = max(state_hash), false) AND count(state_hash) = count(*)
            AND coalesce(min(subset_hash) = max(subset_hash), true)
            AND coalesce(min(action_index) = max(action_index), true)
            AND coalesce(min(action_hash) = max(action_hash), true)
        ) AS log_prob,
        min(advantage) = max(advantage) AND min(advantage) <> 0
        AND count(advantage) = count(*) AS advantage
    FROM digest
    WHERE hash(episode_id, timestep) <= $sample_below AND episode_id IS NOT NULL AND timestep IS NOT NULL
    GROUP BY episode_id, timestep
    HAVING agents > 1
),
tested AS (
    SELECT
        agents AS n,
        count(*) AS steps,
        count(*) FILTER (WHERE state) AS state,
        count(*) FILTER (WHERE subset) AS subset,
        count(*) FILTER (WHERE log_prob) AS "log-prob",
        count(*) FILTER (WHERE advantage) AS advantage
    FROM common
    GROUP BY agents
),
long AS (
    UNPIVOT tested ON state, subset, "log-prob", advantage INTO NAME quantity VALUE shared
),
-- The chance that n random rows coincide: sum over values of C(times, n) / C(total, n).
chances AS (
    SELECT
        long.quantity,
        n,
        any_value(steps) AS steps,
        any_value(shared) AS shared,
        sum(
            CASE WHEN times >= n AND total >= n THEN
                vals * exp(
                    lgamma(times + 1) - lgamma(times - n + 1)
                    - lgamma(total + 1) + lgamma(total - n + 1)
                )
            ELSE 0 END
        ) AS chance
    FROM long
    JOIN spectrum ON spectrum.quantity = long.quantity
    JOIN drawn ON drawn.quantity = long.quantity
    GROUP BY long.quantity, n
),
totals AS (
    SELECT quantity, sum(shared) AS observed, sum(steps * chance) AS expected
    FROM chances
    GROUP BY quantity
)
SELECT
    quantity,
    observed,
    expected,
    CASE WHEN observed > expected THEN
        observed * ln(observed / greatest(expected, 0.01)) - observed + expected
    ELSE 0 END AS surprise
FROM totals
