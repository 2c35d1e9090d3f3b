# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Anchors of pages."""

import re


def anchors(text):
    """The anchors of a page's headings, as GitHub and mkdocs name them."""
    found = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text)):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"`", "", heading).lower())
        found.add(words.strip().replace(" ", "-"))
    return found
