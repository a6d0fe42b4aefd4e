"""The primary and standby that other tests use: streaming, promotion, and rejoining."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from standby import replicated_pair


def test_a_promotion_keeps_what_was_replicated_and_loses_the_rest(tmp_path: Path) -> None:
    with replicated_pair(tmp_path) as pair:
        pair.primary.query("create table kept (n int)")
        pair.make_synchronous()
        pair.primary.query("insert into kept values (1)")
        pair.make_asynchronous()
        pair.wait_for_replay()
        assert pair.standby.value("(select count(*) from kept)") == 1

        pair.cut_off_standby()
        pair.primary.query("insert into kept values (2)")
        assert pair.lag() > 0
        old = pair.primary
        old.freeze()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(old.dsn, connect_timeout=2)
        old.kill()
        new = pair.promote()
        assert (pair.primary, pair.standby) == (new, old)
        assert new.value("(select count(*) from kept)") == 1
        with psycopg.connect(pair.dsn) as sql:
            sql.execute("insert into kept values (3)")

        pair.rejoin()
        pair.wait_for_replay()
        assert old.value("(select array_agg(n order by n) from kept)") == [1, 3]
        assert not old.accepts_writes()
        pair.make_synchronous()
        new.stop()
        assert pair.promote() is old
        with psycopg.connect(pair.dsn) as sql:
            sql.execute("insert into kept values (4)")
    assert not [*tmp_path.iterdir()]
