"""Configurations as users see them, from the store's records. Pure."""

from __future__ import annotations

from service.configuration_records import ConfigurationRow, ConfigurationView
from service.documents import Document
from service.times import rfc3339


def head_document(row: ConfigurationRow) -> Document:
    """The configuration without its history, as lists show it."""
    return {
        "name": row.name,
        "spec": row.document,
        "version": row.version,
        "created_at": rfc3339(row.created_at),
        "updated_at": rfc3339(row.updated_at),
        "etag": row.etag,
    }


def configuration_document(view: ConfigurationView) -> Document:
    """The configuration; its history tells of each earlier version what it was and why it is so no more."""
    history = [
        {
            "version": each.version,
            "replaced_at": rfc3339(each.replaced_at),
            "by": each.by,
            "evidence": None if each.evidence is None else dict(each.evidence),
            "spec": each.document,
        }
        for each in view.history
    ]
    return {**head_document(view.configuration), "history": history, "next_page_token": view.next_page_token}
