/*
meaning = "keys that more than one row has"
keys = ["episode_id", "timestep", "agent_id"]
[columns]
copies = "how many rows have the key"
first_row = "the first of them"
*/
-- In a dump stored in order, copies are neighbours: only an unsorted one needs every key grouped.
WITH stored AS (
    SELECT count(*) = 0 AS in_order
    FROM digest
    WHERE (key_order IS NULL OR key_order < 0) AND row_id > (SELECT min(row_id) FROM digest)
),
suspects AS (
    SELECT DISTINCT episode_id, timestep, agent_id FROM digest WHERE key_order = 0
)
SELECT episode_id, timestep, agent_id, count(*) AS copies, min(row_id) AS first_row
FROM digest SEMI JOIN suspects USING (episode_id, timestep, agent_id)
GROUP BY ALL
UNION
SELECT episode_id, timestep, agent_id, count(*) AS copies, min(row_id) AS first_row
FROM digest, stored
WHERE NOT in_order AND episode_id IS NOT NULL AND timestep IS NOT NULL AND agent_id IS NOT NULL
GROUP BY ALL
HAVING count(*) > 1
