# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Documents of a MongoDB collection."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .source import FeedError, Source, check_key, driver


class Mongo(Source):
    """The documents of a query to a MongoDB collection. Needs the driver `pymongo`
    (`pip install 'cleave[mongo]'`).

    Args:
        collection: a `pymongo` collection, `MongoClient(...)["database"]["collection"]`.
        query: conditions, such as {"img_num": {"$lt": 60000}}; or the stages of an aggregation,
            as a list, without an order of its own.
        key: the field of its result by which documents are ordered: unique, not null.
    """

    def __init__(self, collection, query: Mapping[str, Any] | Sequence[Mapping[str, Any]], *,
                 key: str = "_id"):
        driver("pymongo", "mongo")
        from bson import json_util

        if not isinstance(query, (Mapping, list, tuple)):
            raise TypeError(f"query is {type(query).__name__}, not a dict of conditions or a list "
                            "of stages")
        self.name = f"mongodb {collection.full_name}"
        self.query = json_util.dumps(query)
        self.key = check_key(key)
        self._collection = collection
        self._stages = [{"$match": query}] if isinstance(query, Mapping) else list(query)

    def page(self, after, skip, limit):
        behind = [] if after is None else [{"$match": {self.key: {"$gt": after}}}]
        return self._run([*behind, {"$sort": {self.key: 1}}, *([{"$skip": skip}] if skip else []),
                          {"$limit": limit}])

    def count(self):
        found = self._run([{"$count": "n"}])
        return found[0]["n"] if found else 0

    def _run(self, stages):
        from pymongo.errors import PyMongoError

        try:
            return list(self._collection.aggregate([*self._stages, *stages], allowDiskUse=True))
        except PyMongoError as error:
            raise FeedError(str(error)) from error
