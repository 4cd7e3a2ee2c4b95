/*
code = "SC005"
name = "missing-metadata"
severity = "warning"
scope = "dump"
needs = ["files.path"]
summary = "A file does not say what its policy was, and neither does bufcheck.toml."
why = "logits[subset_indices] and logits[:num_actions] are different distributions; without a declaration the choice between them is a guess."
cause = "The file was written by plain pandas or pyarrow, or was rewritten by a tool that drops metadata."
remedy = "Write the `bufcheck` metadata with the dump, or describe it under [policy] in bufcheck.toml; `bufcheck schema` lists the keys."
message = "{path} has no `bufcheck` metadata: defaults were assumed"
*/
SELECT NULL::BIGINT AS row_id, path
FROM files
WHERE NOT described AND NOT $configured
