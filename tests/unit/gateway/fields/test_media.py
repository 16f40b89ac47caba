"""URLs that an engine would fetch, and the parts of a content in which they hide."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.dataplane.request import CHAT, parse
from gateway.errors import FlorinError
from gateway.fields.media import MAX_MEDIA, media_hosts
from gateway.fields.rule import FieldPolicy

HOSTS = FieldPolicy(media_hosts=media_hosts(("cdn.example.com", "media.internal:8443", "10.0.0.7")))
DATA = "data:image/png;base64,iVBORw0KGgo="


def content(*parts: Any, policy: FieldPolicy = HOSTS, role: str = "user") -> Any:
    body = {"model": "m", "messages": [{"role": role, "content": list(parts)}]}
    return parse(CHAT, orjson.dumps(body), policy).body["messages"][0]["content"]


def image(url: Any, policy: FieldPolicy = HOSTS) -> Any:
    (part,) = content({"type": "image_url", "image_url": {"url": url}}, policy=policy)
    return part["image_url"]["url"]


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        (DATA, DATA),
        ("DATA:Image/PNG;base64,AAAA", "data:image/png;base64,AAAA"),
        ("https://cdn.example.com/a.png?b=c%20d#e", "https://cdn.example.com/a.png?b=c%20d#e"),
        ("HTTPS://CDN.Example.COM:443/A.png", "https://cdn.example.com/A.png"),
        ("http://cdn.example.com:80", "http://cdn.example.com/"),
        ("https://cdn.example.com?x=1", "https://cdn.example.com/?x=1"),
        ("https://media.internal:8443/a", "https://media.internal:8443/a"),
        ("http://10.0.0.7/a@b:c", "http://10.0.0.7/a@b:c"),
    ],
)
def test_an_allowed_url_is_sent_in_one_spelling(url: str, sent: str):
    assert image(url) == sent


REFUSED = [
    "http://10.0.0.8/", "http://169.254.169.254/latest/meta-data", "https://example.com/", "http://localhost:8000/",
    "https://cdn.example.com:8443/", "https://media.internal/", "http://media.internal:8444/",
    "https://cdn.example.com@10.0.0.8/", "https://cdn.example.com:x@10.0.0.8/", "https://a:b@cdn.example.com/",
    "https://10.0.0.8\\@cdn.example.com/", "https://10.0.0.8\\.cdn.example.com/", "https:\\\\10.0.0.8/",
    "https://cdn.example.com\\@10.0.0.8/", "https://cdn.example.com./", "https://cdn.example.com%2e/",
    "https://cdn.example.com%00.evil/", "https://cdn。example。com/", "https://cdn.example.com\u3002/",
    "https://ⓒdn.example.com/", "https://cdn.example.com\t/", " https://cdn.example.com/", "https://cdn.example.com/\n",
    "https://cdn.example.com/a b", "https://cdn.example.com/\r\nX: y", "https:///cdn.example.com/", "https:cdn.example.com",
    "https:/cdn.example.com/", "//cdn.example.com/", "cdn.example.com/a", "https://[::1]/", "https://[fe80::1%25eth0]/",
    "https://[::ffff:10.0.0.7]/", "http://0x0a000007/", "http://167772167/", "http://10.0.0.7.nip.io/", "http://10.7/",
    "https://cdn.example.com:/a", "https://cdn.example.com:0443/", "https://cdn.example.com:443443/", "https://",
    "file:///etc/passwd", "FILE:///etc/passwd", "ftp://cdn.example.com/", "gopher://cdn.example.com/", "httpx://cdn.example.com/",
    "javascript:alert(1)", "", "data:", "data:,x", "data:image/png,AAAA", "data:image/png;base64", "data:;base64,AA",
    "data:image/png;charset=utf-8;base64,AA", "data:x;base64,AA", "data://cdn.example.com/;base64,AA",
    "https://cdn.example.com/" + "a" * 9000, "http" + "s" * 9000, None, 5, [], {"url": "http://10.0.0.7/"},
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED, ids=lambda url: repr(url)[:40])
def test_any_other_url_is_refused(url: Any):
    for policy in (HOSTS, FieldPolicy()):
        with pytest.raises(FlorinError) as caught:
            image(url, policy)
        assert caught.value.code in {"media_not_allowed", "invalid_value"}
        assert caught.value.param == "messages[0].content[0].image_url"
        assert len(caught.value.message) < 400


def test_no_host_is_allowed_unless_it_was_named():
    with pytest.raises(FlorinError) as caught:
        image("https://cdn.example.com/a.png", FieldPolicy())
    assert (caught.value.code, caught.value.status) == ("media_not_allowed", 400)
    assert "the operator has allowed" in caught.value.message


EVIL = "http://169.254.169.254/"
PLACES = [
    {"type": "image_url", "image_url": EVIL},
    {"type": "image_url", "image_url": {"url": EVIL, "detail": "low"}},
    {"image_url": EVIL},
    {"image_url": {"url": EVIL}},
    {"type": None, "image_url": EVIL},
    {"type": "image_url", "image_url": EVIL, "uuid": "a"},
    {"type": "input_image", "image_url": EVIL},
    {"type": "audio_url", "audio_url": {"url": EVIL}},
    {"audio_url": EVIL},
    {"type": "video_url", "video_url": {"url": EVIL}},
    {"video_url": EVIL},
    {"type": "input_image", "file_id": "a"},
    {"type": "file", "file": {"file_data": EVIL}},
    {"type": "input_file", "file_url": EVIL},
    {"type": "image_pil", "image_pil": EVIL},
    {"image_embeds": "AAAA"},
    {"type": "image_embeds", "image_embeds": {"a": "AAAA"}},
    {"type": "audio_embeds", "audio_embeds": "AAAA"},
    {"type": "video_embeds", "video_embeds": "AAAA"},
    {"type": "prompt_embeds", "data": "AAAA"},
    {"prompt_embeds": "", "data": "AAAA"},
    {"type": "image_url", "image_url": None, "uuid": "another-tenants"},
    {"uuid": "another-tenants"},
    {"type": "image_url", "uuid": "another-tenants"},
    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav;base64,AA"}},
    {"type": "input_audio", "input_audio": EVIL},
    {"type": "vision_chunk", "image_url": DATA},
    {"type": ["image_url"], "image_url": DATA},
    {"text": "a", "image_url": DATA},
    {},
    5,
    None,
]


@pytest.mark.parametrize("part", PLACES, ids=lambda part: repr(part)[:50])
def test_a_url_hides_nowhere(part: Any):
    for role in ("user", "system", "tool", "assistant", "developer"):
        with pytest.raises(FlorinError) as caught:
            content({"type": "text", "text": "look"}, part, role=role)
        assert caught.value.status == 400
        assert caught.value.param.startswith("messages[0].content[1]")


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        ("plain", "plain"),
        ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "a"}),
        ({"type": "text", "text": "a", "image_url": EVIL, "uuid": "u"}, {"type": "text", "text": "a"}),
        ({"text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "input_text", "text": "a"}, {"type": "input_text", "text": "a"}),
        ({"type": "refusal", "refusal": "no"}, {"type": "refusal", "refusal": "no"}),
        ({"type": "thinking", "thinking": "hm", "closed": True}, {"type": "thinking", "thinking": "hm"}),
        ({"type": "tool_reference", "name": "f"}, {"type": "tool_reference", "name": "f"}),
        ({"image_url": DATA, "uuid": "u"}, {"type": "image_url", "image_url": {"url": DATA}}),
        ({"type": "image_url", "image_url": {"url": DATA, "detail": "low", "x": 1}, "detail": "a"},
         {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}),
        ({"type": "input_image", "image_url": DATA}, {"type": "image_url", "image_url": {"url": DATA}}),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav", "uuid": "u"}},
         {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}),
    ],
)  # fmt: skip
def test_a_part_is_sent_with_its_own_value_only(part: Any, sent: Any):
    assert content(part) == [sent]


def test_media_are_counted_over_all_messages():
    message = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": DATA}}] * (MAX_MEDIA // 2),
    }
    body = {"model": "m", "messages": [message, message]}
    parse(CHAT, orjson.dumps(body), HOSTS)
    sound = {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}}],
    }
    with pytest.raises(FlorinError, match="at most 64"):
        parse(CHAT, orjson.dumps(body | {"messages": [message, message, sound]}), HOSTS)


@pytest.mark.parametrize("entry", ["https://a", "a/b", "A.com", "a:", "a:b", "*.a.com", "[::1]", "a b", "a."])
def test_hosts_are_named_plainly(entry: str):
    with pytest.raises(ValueError, match="must be `host` or `host:port`"):
        media_hosts((entry,))
