"""Split-KV decode as a study: schedules, and errors by splits, formats of partials and merges."""
