"""A user's own readings: columns, weeks, and what could not be used."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import spot_alive_before
from stocktake_jax.inference.series import from_tapes, read_column_map, read_series, training_series
from stocktake_jax.models import FACTORS, Tape, World


def write(tmp_path: Path, text: str, name: str = "mine.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_own_names_are_found_and_weeks_put_in_place(tmp_path):
    path = write(tmp_path, "week,berth_wait,port.wait_outlook\n3,1,2\n5,14,\n4,4,5\n")
    series = read_series(path)
    assert series.count == 1
    assert series.lengths.tolist() == [3]
    np.testing.assert_array_equal(series.readings["port"]["berth_wait"], [[1, 4, 14]])
    np.testing.assert_array_equal(series.readings["port"]["wait_outlook"], [[2, 5, np.nan]])
    assert list(series.readings) == ["port"]


def test_a_column_map_several_series_gaps_and_words(tmp_path):
    text = (
        "lane,when,days waited,inspection,card,berth_wait\n"
        "north,2024-01-01,1,Accept,ontime,9\n"
        "north,2024-01-15,4,reject,slipping,\n"
        "south,2024-03-04,2,2,defunct,\n"
    )
    columns = {
        "series": "lane", "week": "when", "port.berth_wait": "days waited",
        "quality.aql_result": "inspection", "supplier.band": "card",
    }  # fmt: skip
    series = read_series(write(tmp_path, text), columns)
    assert series.names == ("north", "south")
    assert series.lengths.tolist() == [3, 1]
    nan = np.nan
    np.testing.assert_array_equal(series.readings["port"]["berth_wait"], [[1, nan, 4], [2, nan, nan]])
    np.testing.assert_array_equal(series.readings["quality"]["aql_result"], [[0, nan, 2], [2, nan, nan]])
    np.testing.assert_array_equal(series.readings["supplier"]["band"], [[0, nan, 1], [3, nan, nan]])
    # What is mapped goes before a column that happens to have the channel's name.
    assert "columns that are no channel: 'berth_wait'" in series.unusable
    assert "weeks without a row, taken as weeks without readings: 1 of series north" in series.unusable
    assert any(
        line.startswith("factors without readings") and "canal, demand, freight" in line for line in series.unusable
    )


def test_what_cannot_be_used_is_said_and_left_out(tmp_path):
    text = "week,berth_wait,suez_count,freight_index,aql_result\n" + "".join(
        f"{t},{wait},{suez},100,{aql}\n"
        for t, wait, suez, aql in [
            (0, "1", "70", "accept"),
            (1, "-3", "71", "so-so"),
            (2, "3.5", "63", "marginal"),
            (3, "x", "", ""),
        ]
    )
    series = read_series(write(tmp_path, text))
    np.testing.assert_array_equal(series.readings["port"]["berth_wait"], [[1, np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(series.readings["canal"]["suez_count"], [[70, np.nan, 63, np.nan]])
    np.testing.assert_array_equal(series.readings["quality"]["aql_result"], [[0, np.nan, 1, np.nan]])
    lines = "\n".join(series.unusable)
    assert "readings of port.berth_wait outside [0, inf]: 'berth_wait' in week 1" in lines
    assert "more than 0 decimals" in lines and "'berth_wait' in week 2" in lines
    assert "not a number: 'berth_wait' in week 3" in lines
    assert (
        "readings of canal.suez_count that no state gives (it can be 0, 14, 28, 56, 63, 70): 'suez_count' in week 1"
        in lines
    )
    assert "not one of accept, marginal, reject: 'aql_result' in week 1" in lines
    rough = read_series(write(tmp_path, text), likelihood="paper")
    np.testing.assert_array_equal(rough.readings["port"]["berth_wait"], [[1, np.nan, 3.5, np.nan]])


def test_a_column_without_a_usable_reading_is_left_out(tmp_path):
    series = read_series(write(tmp_path, "week,berth_wait,pos_units\n0,1,a\n1,2,b\n"))
    assert "demand" not in series.readings
    assert any("without any usable reading: 'pos_units'" in line for line in series.unusable)
    with pytest.raises(InputError, match="no column has a usable reading"):
        read_series(write(tmp_path, "week,pos_units\n0,a\n"))


def test_without_weeks_rows_are_consecutive_in_each_series(tmp_path):
    series = read_series(write(tmp_path, "series,pos_units\na,20\nb,30\na,21\n"))
    np.testing.assert_array_equal(series.readings["demand"]["pos_units"], [[20, 21], [30, np.nan]])


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("week,pos_units\n0,20\n0,21\n", {}, r"week 0 of series 1 comes twice, in rows 1 and 2"),
        ("week,pos_units\n0.5,20\n", {}, "row 1 has week '0.5'"),
        ("week,pos_units\nsoon,20\n", {}, "row 1 has week 'soon'"),
        ("week,pos_units\n2024-01-01,20\n2024-01-05,20\n", {}, "no whole number of weeks"),
        ("week,pos_units\n1700000000,20\n1700604800,20\n", {}, "goes from week 1700000000 to week 1700604800"),
        ("week,pos_units\n0,20\n", {"port.berth_wait": "wait"}, "has no column 'wait'"),
        ("week,pos_units\n0,20\n", {"port.wait": "pos_units"}, "'port.wait', which is no channel"),
        ("week,pos_units\n0\n", {}, "row 1 has 1 cells, the header has 2"),
        ("week,week\n0,1\n", {}, "'week' comes twice in the header"),
        ("week,pos_units\n", {}, "has no rows"),
        ("", {}, "has no rows"),
    ],
)
def test_broken_files_are_refused(tmp_path, text, columns, message):
    with pytest.raises(InputError, match=message):
        read_series(write(tmp_path, text), columns)


def test_files_that_are_not_there_or_of_another_kind_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_series(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"must end in \.csv or \.parquet"):
        read_series(tmp_path / "none.xlsx")
    broken = tmp_path / "x.parquet"
    broken.write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot read"):
        read_series(broken)


def test_parquet_gives_what_csv_gives(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 8)]
    table = pa.table(
        {"week": days, "pos_units": [20, None], "aql_result": ["accept", "reject"], "berth_wait": [1.0, 3.0]}
    )
    pq.write_table(table, tmp_path / "mine.parquet")
    got = read_series(tmp_path / "mine.parquet")
    text = "week,pos_units,aql_result,berth_wait\n2024-01-01,20,accept,1\n2024-01-08,,reject,3\n"
    wanted = read_series(write(tmp_path, text))
    assert got.unusable == wanted.unusable
    for factor, channels in wanted.readings.items():
        for name, values in channels.items():
            np.testing.assert_array_equal(got.readings[factor][name], values)


def test_without_pyarrow_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pip install 'stocktake-jax\[fit\]'"):
        read_series(tmp_path / "mine.parquet")


def test_column_maps_are_read_from_toml(tmp_path):
    path = write(tmp_path, 'week = "when"\n"port.berth_wait" = "a"\n[demand]\npos_units = "b"\n', "map.toml")
    assert read_column_map(path) == {"week": "when", "port.berth_wait": "a", "demand.pos_units": "b"}
    with pytest.raises(InputError, match=r"demand\.pos_units must be the name of a column, not 3"):
        read_column_map(write(tmp_path, "[demand]\npos_units = 3\n", "bad.toml"))
    with pytest.raises(InputError, match="cannot read the column map"):
        read_column_map(tmp_path / "none.toml")


def test_training_series_are_the_published_tapes_as_read():
    world = World.paper()
    idle, bought = training_series(world, 3), training_series(world, 3, "spot20")
    tapes = Tape.published_batch(range(5000, 5003), world)
    assert set(idle.readings) == set(FACTORS)
    np.testing.assert_array_equal(idle.readings["demand"]["pos_units"], tapes.values["demand"]["pos_units"])
    assert np.isnan(idle.readings["supplier"]["realized_fill"]).all()
    alive = spot_alive_before(world, tapes)
    fill = bought.readings["supplier"]["realized_fill"]
    np.testing.assert_array_equal(~np.isnan(fill), alive)
    np.testing.assert_array_equal(fill[alive], tapes.values["supplier"]["realized_fill"][alive])
    np.testing.assert_array_equal(
        idle.readings["freight"]["freight_index"], np.round(100 * tapes.values["freight"]["freight_index"])
    )
    with pytest.raises(InputError, match="policy"):
        from_tapes(world, tapes, "spot")
    with pytest.raises(InputError, match="at least 1"):
        training_series(world, 0)
