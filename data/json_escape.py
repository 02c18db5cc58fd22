"""The JSON quirk of LongCrawl64: its text was JSON-string-escaped, without the outer quotes, before BPE.

A newline is the two characters backslash and n, a double quote is backslash and quote, and every non-ASCII character is a
\\uXXXX escape (surrogate pairs beyond U+FFFF). Escaping works character by character: escape(a + b) = escape(a) + escape(b)."""

import json
import warnings


def json_escape(text: str) -> str:
    """Return `text` as the inside of an ASCII-only JSON string literal."""
    return json.dumps(text)[1:-1]


def json_unescape(escaped: str) -> str:
    """Inverse of `json_escape` that never fails: text that is not valid JSON (generated, or cut inside an escape) is decoded
    with Python's escapes, without what cannot be decoded. Lone surrogates are dropped: the result is always valid Unicode."""
    try:
        text = json.loads(f'"{escaped}"')
    except ValueError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # for "\d" and the like, which are kept
            text = escaped.encode("utf-8", "ignore").decode("unicode_escape", errors="ignore")
    # Joins surrogate pairs (the lenient reading leaves them apart) and drops single ones.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
