"""The index finds what brute force finds, survives a crash at any time, and says when it is
damaged."""

from __future__ import annotations

import json
from pathlib import Path

import faiss
import numpy as np
import pytest

from app.retrieval import index as indexing
from app.retrieval.chunks import Chunk
from app.retrieval.index import CHUNKS, Document, EncoderIdentity, Index, Vectors, load_index
from gpu import InvalidRequest, replace_file

N, SIZE = 137, 48
ENCODER = EncoderIdentity("little", tuple(np.eye(SIZE)[3].tolist()))


def vectors_of(seed: int, n: int = N) -> Vectors:
    return np.random.default_rng(seed).normal(size=(n, SIZE)).astype(np.float32)


def index_of(*counts: int) -> Index:
    index = Index(ENCODER)
    for number, n in enumerate(counts):
        chunks = [Chunk(0, 10 * i, f"text {number}.{i}", 7) for i in range(n)]
        document = Document(f"{number}.txt", 10 * n, n, 7 * n, 8, 1)
        index = index.added(document, chunks, vectors_of(number, n))
    return index


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_nearest_are_those_of_brute_force(tmp_path: Path, similarity: str) -> None:
    """Of vectors of several lengths, as some embedding models give."""
    index_of(N, 3).save(tmp_path)
    index = load_index(tmp_path)
    assert index is not None
    vectors = np.concatenate((vectors_of(0), vectors_of(1, 3)))
    for query in vectors_of(9, 20):
        scores = vectors.astype(np.float64) @ query.astype(np.float64)
        if similarity == "cosine":
            scores /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        wanted = np.argsort(-scores)[:7]
        found = index.search(query, 7, similarity)
        assert [id for id, _ in found] == wanted.tolist()
        np.testing.assert_allclose([score for _, score in found], scores[wanted], rtol=1e-5)
    assert len(index.search(vectors[0], 1000, "cosine")) == N + 3


def test_documents_are_added_and_removed(tmp_path: Path) -> None:
    index = index_of(4, 5, 6).without("1.txt")
    assert [document.name for document in index.documents] == ["0.txt", "2.txt"]
    assert [chunk.document for chunk in index.chunks] == [0] * 4 + [1] * 6
    assert index.chunks[4].text == "text 2.0"
    index.save(tmp_path)
    loaded = load_index(tmp_path)
    assert loaded is not None
    assert (loaded.encoder, loaded.documents, loaded.chunks) == (
        ENCODER, index.documents, index.chunks,
    )  # fmt: skip
    wanted = np.concatenate((vectors_of(0, 4), vectors_of(2, 6)))
    np.testing.assert_array_equal(loaded.vectors, wanted)
    [file] = tmp_path.glob("*.faiss")
    assert faiss.read_index(str(file)).ntotal == 10, "other programs can read it"
    loaded.without("0.txt").without("2.txt").save(tmp_path)
    assert load_index(tmp_path) is None
    assert not tmp_path.exists()
    assert Index(ENCODER).search(wanted[0], 3, "cosine") == []


@pytest.mark.parametrize("writes", [0, 1])
def test_a_crash_while_writing_leaves_the_index_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    before = index_of(4)
    before.save(tmp_path)
    done = 0

    def failing(path: Path, data: bytes) -> None:
        nonlocal done
        if done == writes:
            raise OSError(28, "No space left on device")
        done += 1
        replace_file(path, data)

    monkeypatch.setattr(indexing, "replace_file", failing)
    with pytest.raises(OSError, match="No space"):
        index_of(4, 5).save(tmp_path)
    loaded = load_index(tmp_path)
    assert loaded is not None
    assert loaded.documents == before.documents
    monkeypatch.undo()
    index_of(4, 5).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2, "what the crash left is gone"


def damage_vectors(folder: Path) -> None:
    [file] = folder.glob("*.faiss")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def lose_vectors(folder: Path) -> None:
    [file] = folder.glob("*.faiss")
    file.unlink()


def cut_chunks(folder: Path) -> None:
    (folder / CHUNKS).write_bytes((folder / CHUNKS).read_bytes()[:-9])


def other_version(folder: Path) -> None:
    text = (folder / CHUNKS).read_text("utf-8")
    (folder / CHUNKS).write_text(text.replace('"version":1', '"version":9'), "utf-8")


def lose_a_chunk(folder: Path) -> None:
    content = json.loads((folder / CHUNKS).read_bytes())
    del content["chunks"][0]
    (folder / CHUNKS).write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (damage_vectors, "was changed"),
        (lose_vectors, "cannot be read"),
        (cut_chunks, "chunks.json: "),
        (other_version, "has version 9, expected 1"),
        (lose_a_chunk, "chunks.json belongs to another index"),
    ],
)
def test_a_damaged_index_says_what_to_do(tmp_path: Path, harm: object, says: str) -> None:
    index_of(4).save(tmp_path)
    harm(tmp_path)  # type: ignore[operator]
    with pytest.raises(InvalidRequest, match=says) as caught:
        load_index(tmp_path)
    assert "remove all documents and add them again" in str(caught.value)


def test_an_index_is_of_one_embedding_model() -> None:
    near = np.array(ENCODER.probe) + 1e-4
    ENCODER.expect(EncoderIdentity("renamed", tuple(near)))
    for other in (np.eye(SIZE)[4], np.eye(7)[3]):
        with pytest.raises(InvalidRequest, match="with the embedding model little, but large is"):
            ENCODER.expect(EncoderIdentity("large", tuple(other)))
