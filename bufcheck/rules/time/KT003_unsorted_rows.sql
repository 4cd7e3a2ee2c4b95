/*
code = "KT003"
name = "unsorted-rows"
severity = "warning"
scope = "dump"
needs = ["digest.key_order", "files.first_row"]
summary = "Rows of a file are not in the order (episode_id, timestep, agent_id)."
why = "Code that computes returns or shifts by one down the column mixes episodes and agents where the order breaks."
cause = "A circular buffer dumped in storage order, shards merged without sorting, or a shuffle before the dump."
remedy = "Sort by the key before dumping; `bufcheck clean` writes sorted."
message = "its key is smaller than that of the row before"
*/
SELECT row_id
FROM digest
WHERE key_order < 0 AND row_id NOT IN (SELECT first_row FROM files)
