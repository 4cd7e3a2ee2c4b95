/*
code = "SC002"
name = "wrong-type"
severity = "error"
scope = "row"
needs = ["columns.name"]
summary = "A column is not of the type the schema names, a vector has another length than the rest, or a timestep is negative."
why = "A float where an index belongs rounds, a narrower integer wraps, a state of another length feeds other weights: values change without an error."
cause = "A data-frame library widened the column (integers with a hole become floats), or two environments with different observation sizes share a dump."
remedy = "Cast at the writer, where the type is known; keep one dump per observation shape."
message = "{what}"
*/
WITH usual AS (
    SELECT
        coalesce(
            $policy_state_size,
            (SELECT state_len FROM digest WHERE state_len IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1)
        ) AS state_len,
        (SELECT action_len FROM digest WHERE action_len IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1) AS action_len
),
judged AS (
    SELECT
        row_id,
        concat_ws(
            '; ',
            CASE WHEN timestep < 0 THEN 'timestep is ' || timestep || ', it counts from 0' END,
            CASE WHEN digest.state_len <> usual.state_len THEN
                'state_embed has ' || digest.state_len || ' numbers, expected ' || usual.state_len
            END,
            CASE WHEN digest.action_len <> usual.action_len THEN
                'action has ' || digest.action_len || ' numbers, expected ' || usual.action_len
            END,
            CASE WHEN action_mean_len <> digest.action_len OR action_std_len <> digest.action_len THEN
                'action, action_mean and action_std differ in length'
            END
        ) AS what
    FROM digest, usual
    WHERE timestep < 0
        OR digest.state_len <> usual.state_len
        OR digest.action_len <> usual.action_len
        OR action_mean_len <> digest.action_len
        OR action_std_len <> digest.action_len
)
SELECT
    NULL::BIGINT AS row_id,
    'column ' || name || ' is ' || type || ', the schema says ' || expected
        || CASE WHEN readable THEN '' ELSE '; the rules that need it could not run' END AS what
FROM columns
WHERE known AND NOT fits
UNION ALL
SELECT row_id, what FROM judged
