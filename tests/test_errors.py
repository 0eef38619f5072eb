from headwise.errors import HeadwiseError, missing_extra, unknown


def test_an_error_says_what_was_seen_expected_and_what_to_type():
    error = HeadwiseError("gates (2, 3)", "(6, 12)", "torch.ones(6, 12)")
    assert str(error) == "gates (2, 3); expected (6, 12). Try: torch.ones(6, 12)"
    assert isinstance(error, ValueError)


def test_near_names_are_offered():
    text = str(unknown("task", "sst", ["sst2", "qnli", "mnli"]))
    assert "unknown task 'sst'" in text and text.endswith("Try: sst2")
    assert "qnli" in text


def test_a_missing_extra_says_what_to_install():
    assert 'pip install -e ".[captum]"' in str(missing_extra("captum", "captum", "this"))
