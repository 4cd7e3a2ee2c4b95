/*
code = "SC007"
name = "incomplete-clean"
severity = "warning"
scope = "dump"
needs = ["files.lacks_manifest"]
summary = "A file that `bufcheck clean` wrote has no manifest beside it."
why = "The manifest is written last: without it the cleaning did not finish, or nobody can tell any more what was taken out of this buffer and why."
cause = "The cleaning was killed in its last moment, or the file was moved or renamed alone."
remedy = "Clean the original again, or keep the three files together."
message = "{path}: {lacks_manifest} is not beside it"
*/
SELECT NULL::BIGINT AS row_id, path, lacks_manifest
FROM files
WHERE lacks_manifest IS NOT NULL
