"""Java's own HTTP client, which offers every server an upgrade to HTTP/2."""

import shutil
from pathlib import Path

import pytest

from tests import pictures, servers

pytestmark = pytest.mark.slow

JAVA = """
import java.net.URI;
import java.net.http.*;
import java.nio.file.Path;
public class Ask {
    public static void main(String[] given) throws Exception {
        var client = HttpClient.newHttpClient();
        for (int i = 0; i < 2; i++) {
            var photo = HttpRequest.BodyPublishers.ofFile(Path.of(given[1]));
            var ask = HttpRequest.newBuilder(URI.create(given[0])).POST(photo);
            var answer = client.send(ask.header("Content-Type", "image/jpeg").build(),
                HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.body());
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
def test_photos_are_classified(onnx_url: str, tmp_path: Path) -> None:
    source, photo = tmp_path / "Ask.java", tmp_path / "photo.jpg"
    source.write_text(JAVA)
    photo.write_bytes(pictures.jpeg())
    result = servers.run("java", str(source), f"{onnx_url}/predict", str(photo))
    assert result.returncode == 0, result.stderr
    assert [line[:16] for line in result.stdout.splitlines()] == ['200 {"prediction'] * 2
