/*
meaning = "the bad rows, and no other"
stands_alone = true
*/
SELECT row_id FROM bad
