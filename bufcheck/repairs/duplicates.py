"""Of rows that agree in every column of the schema the first stays; it is marked as the one that stands
for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bufcheck.repair import Work

RESOLVES: tuple[str, ...] = ()
SQL = """
    WITH copies AS (
        SELECT DISTINCT episode_id, timestep, agent_id
        FROM digest
        WHERE row_id IN (SELECT row_id FROM findings WHERE rule = 'duplicate-key')
    )
    SELECT row_id FROM digest SEMI JOIN copies USING (episode_id, timestep, agent_id)
"""


def mend(work: Work) -> str:
    return SQL
