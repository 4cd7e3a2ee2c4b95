/*
meaning = "A circular buffer was dumped as it lies in memory: the newest rows first, then the oldest."
when = "first"
evidence = "keys fall once in the file and go on at its end where its beginning starts: one episode lies in two pieces"
fix = "Dump from the write head on: np.roll(rows, -head), or sort by the key."
*/
-- In each file: one descent, and the last key before the first.
WITH breaks AS (
    SELECT file, min(row_id) AS head
    FROM findings
    JOIN files ON row_id >= files.first_row AND row_id < files.first_row + files.rows
    WHERE rule = 'unsorted-rows' AND row_id NOT IN (SELECT row_id FROM causes)
    GROUP BY file
    HAVING count(*) = 1
),
edges AS (
    SELECT
        breaks.file,
        head,
        closing.row_id AS closing,
        opening.episode_id AS split,
        (opening.episode_id, opening.timestep, opening.agent_id)
        > (closing.episode_id, closing.timestep, closing.agent_id) AS turned
    FROM breaks
    JOIN files USING (file)
    JOIN digest AS opening ON opening.row_id = files.first_row
    JOIN digest AS closing ON closing.row_id = files.first_row + files.rows - 1
)
SELECT row_id
FROM digest JOIN edges ON episode_id = split
WHERE turned AND closing NOT IN (SELECT row_id FROM causes)
UNION
SELECT head FROM edges WHERE turned AND closing NOT IN (SELECT row_id FROM causes)
