/*
code = "SC003"
name = "unknown-column"
severity = "warning"
scope = "dump"
needs = ["columns.name"]
summary = "A column is neither in the schema nor marked as your own with x_."
why = "A misspelt name looks like a column of your own: what it should have supplied goes unchecked and unused."
cause = "A typing error, an older trainer, or a field meant only for your own analysis."
remedy = "Rename it to the schema's name, map it under [columns] in bufcheck.toml, or prefix it with x_ to carry it through untouched."
message = "column {name} ({type}) is not in the schema"
*/
SELECT NULL::BIGINT AS row_id, name, type
FROM columns
WHERE NOT known AND NOT own
