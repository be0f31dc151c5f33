"""Downloads from a server that fails in the ways servers do; archives that want out."""

import hashlib
import io
import os
import socket
import stat
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from filelock import FileLock

from fecam.data.download import fetch, report_downloads, unpack
from fecam.errors import DatasetError

CONTENT = bytes(range(256)) * 4000
SHA, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        begins = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        behaviour = self.path.strip("/")
        if behaviour == "absent":
            return self.send_error(404)
        if behaviour == "busy" and len(self.server.asked) < 3:
            return self.send_error(503)
        if behaviour == "away":
            return self.answer(302, Location="http://example.com/file")
        if behaviour == "moved":
            return self.answer(302, Location="/whole")
        if begins >= len(CONTENT):
            return self.send_error(416)
        if behaviour == "no-range" or not begins:
            begins, status, headers = 0, 200, {}
        else:
            status, headers = 206, {"Content-Range": f"bytes {begins}-/{len(CONTENT)}"}
        rest = CONTENT[begins:]
        # These two break off in the middle of the answer, once or always.
        short = behaviour == "once" and len(self.server.asked) == 1
        body = rest[: len(rest) // 2] if short or behaviour == "short" else rest
        self.answer(status, body, **{"Content-Length": str(len(rest)), **headers})

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_file_is_fetched_once(server, tmp_path):
    seen = []
    target = tmp_path / "deep" / "file.bin"
    done = fetch(
        f"{server.url}/whole", target, sha256=SHA, md5=MD5, progress=lambda *a: seen.append(a)
    )
    assert done == target and target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and len(seen) > 1 and seen == sorted(seen)
    fetch(f"{server.url}/whole", target, md5=MD5.upper())
    assert len(server.asked) == 1 and visible(target.parent) == ["file.bin"]


def test_report_downloads_sees_downloads_of_other_functions(server, tmp_path):
    seen = []
    with report_downloads(lambda *a: seen.append(a)):
        fetch(f"{server.url}/whole", tmp_path / "one")
    fetch(f"{server.url}/whole", tmp_path / "other")
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and seen.count(seen[-1]) == 1


def test_an_interrupted_download_resumes(server, tmp_path):
    fetch(f"{server.url}/once", tmp_path / "f", sha256=SHA)
    half = f"bytes={len(CONTENT) // 2}-"
    assert [asked for _, asked in server.asked] == [None, half]
    server.asked.clear()
    # Without a checksum, nothing tells that the two pieces belong together.
    fetch(f"{server.url}/once", tmp_path / "g")
    assert [asked for _, asked in server.asked] == [None, None]
    assert (tmp_path / "f").read_bytes() == (tmp_path / "g").read_bytes() == CONTENT


def test_a_part_of_an_earlier_run_is_used(server, tmp_path):
    part = tmp_path / "f.part"
    for behaviour, piece in (("whole", 1000), ("no-range", 1000), ("whole", len(CONTENT))):
        part.write_bytes(CONTENT[:piece])
        server.asked.clear()
        fetch(f"{server.url}/{behaviour}", tmp_path / "f", sha256=SHA)
        assert [asked for _, asked in server.asked] == [f"bytes={piece}-"]
        assert (tmp_path / "f").read_bytes() == CONTENT and not part.exists()
        (tmp_path / "f").unlink()


@pytest.mark.parametrize("piece", [b"another file", b"longer" * len(CONTENT)])
def test_a_part_of_another_file_is_detected(server, tmp_path, piece):
    (tmp_path / "f.part").write_bytes(piece)
    fetch(f"{server.url}/whole", tmp_path / "f", sha256=SHA)
    assert (tmp_path / "f").read_bytes() == CONTENT and len(server.asked) == 2
    (tmp_path / "g.part").write_bytes(piece)
    fetch(f"{server.url}/whole", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == CONTENT


def test_a_busy_server_is_retried_and_redirects_are_followed(server, tmp_path):
    assert fetch(f"{server.url}/busy", tmp_path / "f").read_bytes() == CONTENT
    assert fetch(f"{server.url}/moved", tmp_path / "g").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("behaviour", "wanted", "message"),
    [
        ("absent", {}, "answered 404"),
        ("short", {}, r"ended after 512000 of 1024000 bytes"),
        ("whole", {"sha256": "0" * 64}, f"sha256 {SHA}, not 000"),
        ("whole", {"md5": "0" * 32}, f"md5 {MD5}, not 000"),
    ],
)
def test_errors_name_the_url_the_cause_and_the_remedy(server, tmp_path, behaviour, wanted, message):
    with pytest.raises(DatasetError, match=message) as caught:
        fetch(f"{server.url}/{behaviour}", tmp_path / "f", **wanted)
    text = str(caught.value)
    assert f"{server.url}/{behaviour}" in text and f"by hand and put the file at {tmp_path}" in text
    assert "f" not in visible(tmp_path)
    assert len(server.asked) == (3 if behaviour == "short" else 1)


def test_a_server_that_does_not_respond(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/f"
        with pytest.raises(DatasetError, match="no connection"):
            fetch(url, tmp_path / "f")
        free.listen()  # Takes the call, says nothing.
        with pytest.raises(DatasetError, match="timed out"):
            fetch(url, tmp_path / "f", timeout=0.05)
    assert visible(tmp_path) == []


@pytest.mark.parametrize(
    "url",
    ["http://example.com/f", "file:///etc/passwd", "ftp://127.0.0.1/f", "http://127.0.0.1.x.org/f"],
)
def test_only_https_is_permitted(url, tmp_path):
    with pytest.raises(DatasetError, match="only https"):
        fetch(url, tmp_path / "f")


def test_a_redirect_to_http_is_not_followed(server, tmp_path):
    with pytest.raises(DatasetError, match=r"example\.com.*only https"):
        fetch(f"{server.url}/away", tmp_path / "f")


def test_an_existing_file_with_another_checksum_is_not_changed(server, tmp_path):
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(DatasetError, match="Remedy: remove it"):
        fetch(f"{server.url}/whole", tmp_path / "f", md5=MD5)
    assert (tmp_path / "f").read_bytes() == b"mine" and not server.asked


def test_concurrent_downloads_of_one_file_are_rejected(server, tmp_path):
    with FileLock(tmp_path / ".f.lock"), pytest.raises(DatasetError, match="another process"):
        fetch(f"{server.url}/whole", tmp_path / "f")


def test_a_folder_that_is_not_writable(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="could not download"):
        fetch(f"{server.url}/whole", tmp_path / "file" / "f")


# --- archives -------------------------------------------------------------------------------------


def tar(path, *members, mode="w:gz"):
    """Write an archive of (name, content) or of members made by hand."""
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("kind", ["a.tar", "a.tar.gz", "a.zip", "no-suffix"])
def test_archives_are_unpacked_completely(tmp_path, kind):
    members = (("set/a.txt", b"one"), ("set/deep/b.txt", b"two"))
    if kind == "a.zip":
        archive = zipped(tmp_path / kind, ("set/", b""), *members)
    else:
        folder = (special("set", tarfile.DIRTYPE), b"")
        archive = tar(tmp_path / kind, folder, *members, mode="w" if kind == "a.tar" else "w:gz")
    result = unpack(archive, tmp_path / "out" / "here")
    assert (result / "set/a.txt").read_bytes() == b"one"
    assert (result / "set/deep/b.txt").read_bytes() == b"two"
    assert visible(tmp_path / "out") == ["here"]
    with pytest.raises(DatasetError, match="exists already"):
        unpack(archive, tmp_path / "out" / "here")


def test_links_inside_an_archive_become_copies(tmp_path):
    archive = tar(
        tmp_path / "a.tgz",
        ("set/a/one.txt", b"one"),
        (special("set/b/soft.txt", tarfile.SYMTYPE, "../a/one.txt"), b""),
        (special("set/hard.txt", tarfile.LNKTYPE, "set/a/one.txt"), b""),
    )
    folder = unpack(archive, tmp_path / "out")
    for name in ("b/soft.txt", "hard.txt"):
        assert (folder / "set" / name).read_bytes() == b"one"
        assert not (folder / "set" / name).is_symlink()


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../out.txt", b"x"), "leads out"),
        (("a/../../out.txt", b"x"), "leads out"),
        (("/tmp/out.txt", b"x"), "leads out"),
        (("a\\..\\out.txt", b"x"), "leads out"),
        ((special("l", tarfile.SYMTYPE, "/etc/passwd"), b""), "leads out"),
        ((special("l", tarfile.SYMTYPE, "../../secret"), b""), "leads out"),
        ((special("l", tarfile.SYMTYPE, "nothing"), b""), "is a link to"),
        ((special("l", tarfile.LNKTYPE, "../secret"), b""), "leads out"),
        ((special("d", tarfile.CHRTYPE), b""), "device"),
        ((special("d", tarfile.FIFOTYPE), b""), "device"),
    ],
)
def test_hostile_tars(tmp_path, member, message):
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "in").mkdir()
    archive = tar(tmp_path / "a.tgz", ("good.txt", b"x"), member)
    with pytest.raises(DatasetError, match=message):
        unpack(archive, tmp_path / "in" / "out")
    assert visible(tmp_path / "in") == [] and visible(tmp_path) == ["a.tgz", "in", "secret"]


def test_hostile_zips(tmp_path):
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    for at, (name, content) in enumerate([("../x", b""), ("/x", b""), (link, b"/etc/passwd")]):
        archive = zipped(tmp_path / f"{at}.zip", (name, content))
        with pytest.raises(DatasetError, match=r"leads out|is a link"):
            unpack(archive, tmp_path / "out")
    assert visible(tmp_path) == ["0.zip", "1.zip", "2.zip"]


def test_limits_on_bytes_and_files(tmp_path):
    bomb = zipped(tmp_path / "a.zip", ("zeros", bytes(1_000_000)))
    assert os.path.getsize(bomb) < 2000
    with pytest.raises(DatasetError, match="over 500000 bytes"):
        unpack(bomb, tmp_path / "out", max_bytes=500_000)
    many = tar(tmp_path / "b.tgz", *((f"{at}.txt", b"") for at in range(5)))
    with pytest.raises(DatasetError, match="more than 4 files"):
        unpack(many, tmp_path / "out", max_files=4)
    assert len(visible(unpack(many, tmp_path / "out", max_files=5))) == 5


def test_damaged_archives(tmp_path):
    noise = os.urandom(200_000)
    for archive in (
        tar(tmp_path / "a.tgz", ("x", noise)),
        zipped(tmp_path / "a.zip", ("x", noise)),
    ):
        whole = archive.read_bytes()
        for damaged in (
            whole[:100_000],
            b"",
            b"no archive",
            whole[:5000] + b"?" * 50 + whole[5050:],
        ):
            archive.write_bytes(damaged)
            with pytest.raises(DatasetError, match="damaged"):
                unpack(archive, tmp_path / "out")
    assert visible(tmp_path) == ["a.tgz", "a.zip"]
    with pytest.raises(DatasetError, match="no archive at"):
        unpack(tmp_path / "absent.zip", tmp_path / "out")
