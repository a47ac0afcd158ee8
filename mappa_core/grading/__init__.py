"""Whether a result is right: answers, submissions, task metrics. Never the coach's business."""
