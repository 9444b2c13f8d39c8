"""A site's file becomes a table of the very numbers in it, or an error that says which file of which site, where in it, and what to do."""

import sys

import numpy as np
import pandas as pd
import pytest

import fedhybrid as fh
from fedhybrid.tables.read import MISSING, read_table, read_tables
from fedhybrid.tables.records import read_numbers

pyarrow = pytest.importorskip("pyarrow")
SECRET = "7734"


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_numbers_text_truth_and_what_is_missing(tmp_path):
    path = write(tmp_path / "north.csv", 'age, sex ,ok,name\n1, f ,True,"Müller, A"\n2.5,m,False,None\nNA,,NA,\n\n')
    frame = read_table(path)
    assert list(frame.columns) == ["age", "sex", "ok", "name"]
    np.testing.assert_array_equal(frame["age"], [1, 2.5, np.nan])
    assert frame["sex"].tolist()[:2] == ["f", "m"]
    assert frame["ok"].tolist()[:2] == [True, False]
    assert frame["name"].tolist()[:2] == ["Müller, A", "None"]
    assert frame.iloc[2].isna().all()


@pytest.mark.parametrize("word", sorted(MISSING))
@pytest.mark.parametrize("other", ["1.5", "red", "True"])
def test_every_word_for_missing_is_missing_in_columns_of_every_kind(word, other, tmp_path):
    frame = read_table(write(tmp_path / "a.csv", f"x,y\n{word},0\n {word} ,0\n{other},0\n"))
    assert frame["x"].isna().tolist() == [True, True, False]
    assert str(frame["x"].iloc[2]) == other


def test_numbers_come_back_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    exact = np.concatenate([rng.normal(size=500) * 10.0 ** rng.integers(-300, 300, 500), [0.1, 5e-324, 1.7976931348623157e308, 2**53 - 1]])
    path = write(tmp_path / "a.csv", "x,y\n" + "".join(f"{x!r},{' ' if k else 'NA'}\n" for k, x in enumerate(map(float, exact))))
    np.testing.assert_array_equal(read_table(path)["x"].to_numpy().view(np.int64), exact.view(np.int64))


def test_numbers_with_underscores_or_decimal_commas_stay_text(tmp_path):
    frame = read_table(write(tmp_path / "a.csv", 'x,y,z\n1_000,"1,5",12\n2_000,"2,5",13\n'))
    assert frame["x"].tolist() == ["1_000", "2_000"]
    assert frame["y"].tolist() == ["1,5", "2,5"]
    assert frame["z"].tolist() == [12, 13]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert list(read_table(write(tmp_path / "a.csv", b"\xef\xbb\xbfx,y\r\n1,2\r\n")).columns) == ["x", "y"]


def test_csv_and_parquet_give_the_same_table(tmp_path):
    text = "age,sex,ok,n\n1.1,f,True,3\n,m,False,4\n3,,True,5\n"
    table = read_table(write(tmp_path / "a.csv", text))
    table.assign(sex=pd.Categorical(table["sex"])).to_parquet(tmp_path / "a.parquet")
    for name in table:
        again = read_table(tmp_path / "a.parquet")[name]
        assert again.isna().equals(table[name].isna())
        assert again.dropna().tolist() == table[name].dropna().tolist()


BAD = {
    "empty": (b"", "is empty"),
    "blank lines": (b"\n\n  \n", "is empty"),
    "header only": (b"x,y\n", "has a header and no row"),
    "cut off in a row": (b"x,y,z\n1,2,3\n7734,2", r"line 3 has 2 cells, but the header has 3 names\. Was all of it written"),
    "a cell too many": (b"x,y\n1,2\n7734,5,3\n", "line 3 has 3 cells.*quotation marks"),
    "cut off in a quotation": (b'x,y\n1,"7734', "is not a CSV file from line 2 on"),
    "a quotation that goes on": (b'x,y\n1,"7734"7734\n', "is not a CSV file"),
    "Latin-1": ("x,y\n1,2\n3,Müller7734\n".encode("latin-1"), r"line 3 \(byte 11\) is not UTF-8.*CSV UTF-8"),
    "UTF-16": ("x,y\n1,7734\n".encode("utf-16"), "is not UTF-8"),
    "zeros": (b"x,y\n1,2\n7734\0\0,3\n", "line 3 holds a byte 0"),
    "a name twice": (b"x,y, x\n7734,2,3\n", "two columns are called x"),
    "no name": (b"x,,y\n7734,2,3\n", "column 2 has no name"),
    "semicolons": (b"x;y\n7734;2\n", "commas between"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_read_is_named_with_its_site_and_the_place(case, tmp_path):
    content, message = BAD[case]
    path = write(tmp_path / "north.csv", content)
    with pytest.raises(fh.InvalidData, match=message) as caught:
        read_tables([path])
    assert str(caught.value).startswith(f"north: {path}")
    assert SECRET not in str(caught.value)


def test_every_place_where_a_file_may_be_cut_off_gives_our_error_or_whole_rows(tmp_path):
    whole = 'x,name\n1.5,"a, b"\n2.5,"c\nd"\n3.5,ü\n'.encode()
    for end in range(len(whole)):
        path = write(tmp_path / "a.csv", whole[:end])
        try:
            frame = read_table(path)
        except fh.InvalidData:
            continue
        assert list(frame.columns) == ["x", "name"]  # a line of which the last cell only was cut cannot be told from a whole one
        assert frame["x"].tolist() == [1.5, 2.5, 3.5][: len(frame)]


def test_a_parquet_file_that_is_cut_off_empty_or_none_is_refused(tmp_path):
    pd.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]}).to_parquet(tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-5], b"", b"x,y\n1,2\n", whole[:200] + bytes(60) + whole[260:]):
        with pytest.raises(fh.InvalidData, match=r"north: .*north\.parquet"):
            read_table(write(tmp_path / "north.parquet", content))
    pd.DataFrame({"x": pd.Series([], dtype=float)}).to_parquet(tmp_path / "north.parquet")
    with pytest.raises(fh.InvalidData, match="at least one row"):
        read_table(tmp_path / "north.parquet")


def test_without_pyarrow_a_parquet_file_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(fh.InvalidConfig, match=r"pip install fedhybrid\[parquet\]"):
        read_table(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_file_that_is_not_there_or_is_a_folder_is_named(name, tmp_path):
    with pytest.raises(fh.InvalidData, match=rf"site: .*{name} could not be read: No such file"):
        read_table(tmp_path / name, "site")
    (tmp_path / name).mkdir()
    with pytest.raises(fh.InvalidData, match=rf"a: .*{name} could not be read: Is a directory"):
        read_table(tmp_path / name)


def test_sites_are_called_as_their_files_and_no_two_the_same(tmp_path):
    (tmp_path / "old").mkdir()
    paths = [write(tmp_path / name, f"x\n{k}\n") for k, name in enumerate(("north.csv", "south.csv", "old/north.csv"))]
    assert {site: frame["x"].tolist() for site, frame in read_tables(paths[:2]).items()} == {"north": [0], "south": [1]}
    with pytest.raises(fh.InvalidConfig, match=r"north.csv and .*north.csv would both be the site north"):
        read_tables(paths)
    with pytest.raises(fh.InvalidConfig, match="no file"):
        read_tables([])


def test_a_table_of_numbers_says_where_one_is_none_and_not_what_stands_there(tmp_path):
    header, table = read_numbers(write(tmp_path / "a.csv", "x,y\n1,2\n\n3,0.1\n"))
    assert header == ["x", "y"]
    assert table.tolist() == [[1, 2], [3, 0.1]]
    with pytest.raises(fh.InvalidData, match="line 4, column y: this is not a number; write categories") as caught:
        read_numbers(write(tmp_path / "a.csv", f"x,y\n1,2\n\n3,Jane{SECRET}\n"))
    assert SECRET not in str(caught.value)
