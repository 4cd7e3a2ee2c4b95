/*
code = "SC001"
name = "missing-column"
severity = "error"
scope = "dump"
needs = ["columns.name"]
summary = "A required column is absent, or only some files of the dump have a column."
why = "Without it the log-prob of a sample cannot be rebuilt, so nobody can tell whether the update scores the distribution that acted."
cause = "The trainer never stored the field, stored it under another name, or one worker runs older code than the rest."
remedy = "Store the column, or name the one that holds it under [columns] in bufcheck.toml."
message = "column {name} ({expected}) {state}"
*/
SELECT
    NULL::BIGINT AS row_id,
    name,
    coalesce(expected, 'of your own') AS expected,
    CASE
        WHEN files_with = 0 THEN 'is missing'
        ELSE 'is missing from ' || files_without || ' of ' || (files_with + files_without)
            || ' files, ' || lacking || ' among them'
    END AS state
FROM columns
WHERE (required AND files_with = 0) OR (files_with > 0 AND files_without > 0)
