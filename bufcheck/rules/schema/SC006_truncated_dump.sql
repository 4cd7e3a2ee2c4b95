/*
code = "SC006"
name = "truncated-dump"
severity = "error"
scope = "dump"
needs = ["files.rows"]
wants = ["files.declared_rows"]
summary = "A file holds another number of rows than it declares, or columns of different lengths; or a part is missing."
why = "A writer that was killed can leave a file that opens without complaint and lacks a third of its rows: episodes end in mid-air and bootstrap from nothing."
cause = "The trainer was killed, the disk ran full, or the file is still being written."
remedy = "Wait until the writer has closed its files, give all parts, or dump again. `--ignore truncated-dump` checks what is there."
message = "{path}: {what}"
*/
-- A BufferWriter numbers its parts, and marks the last one when it is closed.
WITH parts AS (
    SELECT
        writer,
        arg_max(path, part) AS path,
        arg_max(last, part) AS ended,
        max(part) + 1 - count(DISTINCT part) AS missing,
        max(part) AS part
    FROM files
    WHERE part IS NOT NULL
    GROUP BY writer
)
SELECT
    NULL::BIGINT AS row_id,
    path,
    concat_ws(
        '; ',
        CASE WHEN declared_rows <> rows THEN
            'declares ' || declared_rows || ' rows and holds ' || rows
        END,
        CASE WHEN uneven IS NOT NULL THEN
            'columns differ in length: ' || uneven || ', the shortest ' || rows
        END
    ) AS what
FROM files
WHERE declared_rows <> rows OR uneven IS NOT NULL
UNION ALL
SELECT
    NULL,
    path,
    concat_ws(
        '; ',
        CASE WHEN missing > 0 THEN missing || ' of the parts before it are missing' END,
        CASE WHEN NOT ended THEN
            'part ' || part || ' is not the last: its writer was not closed, or later parts are missing'
        END
    )
FROM parts
WHERE missing > 0 OR NOT ended
UNION ALL
SELECT NULL, min(path), unfinished || ' lies beside it: its writer is at work, or was killed'
FROM files
WHERE unfinished IS NOT NULL
GROUP BY unfinished
