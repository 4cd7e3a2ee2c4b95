/*
code = "SC006"
name = "truncated-dump"
severity = "error"
scope = "dump"
needs = ["files.rows"]
wants = ["files.declared_rows"]
summary = "A file holds another number of rows than it declares, or columns of different lengths."
why = "A writer that was killed can leave a file that opens without complaint and lacks a third of its rows: episodes end in mid-air and bootstrap from nothing."
cause = "The trainer was killed, the disk ran full, or the file is still being written."
remedy = "Wait until the writer has closed the file, or dump again."
message = "{path}: {what}"
*/
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
