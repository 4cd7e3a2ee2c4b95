/*
meaning = "every episode that a bad row left a hole in"
*/
SELECT row_id FROM bad
UNION
SELECT row_id FROM digest SEMI JOIN holes USING (episode_id)
