// The one source of a target that owns a precompiled header.
