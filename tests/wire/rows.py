"""What other load generators got wrong, and the test that holds it right here: a row per defect reported to them.

The numbers are those of our survey of their issues: first tokens 1-11, gaps 12-22, counts 23-33, the wire 34-45,
failures 46-56, the load 58-70, the life of a run 76-88. test_rows.py checks that every test named here exists.
"""

ROWS = """
1, 2, 3   an opening event without text is no token       wire/test_first_token  test_the_role_chunk_is_no_token
4         reasoning is the first token                    wire/test_first_token  test_reasoning_is_the_first_token_and_the_answer_is_kept_apart
4         an answer of reasoning alone                    wire/test_first_token  test_reasoning_alone_is_an_answer
5, 6, 7   no token: a failure, its TTFT missing, not 0    wire/test_first_token  test_an_answer_without_a_token_fails_as_empty
9         tool calls                                      wire/test_first_token  test_tool_calls_are_tokens_and_null_ones_are_not
10        a chunk with usage and no choices               wire/test_first_token  test_a_last_chunk_without_choices_carries_the_usage
11        set-up of connections in the first TTFT         wire/test_load         test_connections_are_open_before_the_first_request
12        as many gaps as tokens less one                 wire/test_first_token  test_usage_may_ride_on_the_last_token
13        several tokens in an event                      wire/test_first_token  test_several_tokens_in_one_event
14        TPOT divides by tokens                          reports/test_metrics   test_several_tokens_per_event_divide_by_tokens_not_events
14        all tokens in one event have no TPOT            reports/test_metrics   test_a_server_that_sends_all_tokens_in_one_event_shows_no_tpot
15, 19    TPOT and ITL are both there, and defined        reports/test_metrics   test_every_latency_has_a_definition
16        no TTFT in the gaps                             reports/test_metrics   test_one_request_by_hand
17        one token has no TPOT                           reports/test_metrics   test_one_token_has_no_tpot_and_no_token_has_no_ttft
17        missing does not pass a gate                    reports/test_sla       test_missing_is_not_passing
20        other events do not move the clock              wire/test_first_token  test_events_that_are_no_tokens_do_not_move_the_clock
21        what is printed is what is in the JSON          reports/test_render    test_a_run_has_its_numbers_at_any_width
22        a peak below the mean                           none: no peak rate is reported
23        an answer shorter than asked                    wire/test_counts       test_an_answer_shorter_than_asked
25        no usage                                        wire/test_counts       test_a_server_without_usage
26        prompts of exactly the planned length           wire/test_counts       test_prompts_go_as_ids_of_exactly_the_planned_length
26        a small vocabulary                              wire/test_bad_input    test_a_small_vocabulary_is_not_left
26, 29    a server that counts otherwise                  wire/test_counts       test_a_server_that_counts_prompts_otherwise_is_found_out
27        a prefix and what follows, joined               wire/test_bodies       test_a_prompt_that_is_joined_of_two_has_the_length_of_both
28        counting again by a tokenizer of our own        none: the client has no tokenizer
29        the chat template's tokens                      wire/test_counts       test_a_chat_template_is_taken_off_the_text
30        ignore_eos is sent                              wire/test_counts       test_the_length_of_the_answer_is_asked_for
30        ignore_eos is refused                           wire/test_counts       test_a_strict_server_is_explained
31        lengths below one token                         workloads/test_length_distributions test_what_rounds_below_one_token_becomes_one
32        workers with the same prompts                   wire/test_processes    test_workers_share_the_plan
33        hidden reasoning                                wire/test_counts       test_hidden_reasoning_is_in_the_count
34        a character cut in two                          wire/test_cuts         test_an_answer_cut_in_two_at_every_byte
35        comments                                        wire/test_cuts         test_comments_are_ignored
36        no space after data:                            wire/test_cuts         test_the_space_after_data_is_optional
38        many events in a read                           wire/test_cuts         test_an_answer_in_one_read
39        spaces at the edge of a read                    wire/test_cuts         test_text_that_looks_like_a_stream_is_text
41        every field of the standard                     wire/test_cuts         test_every_field_and_line_end_of_the_standard
43        events up to 4 MiB                              wire/test_bodies       test_an_event_of_exactly
43        requests of 5 MB                                wire/test_bodies       test_a_request_larger_than_any_buffer
43        no quadratic buffer                             engines/remote/test_sse test_a_long_line_in_small_pieces_costs_its_length_only
45        a hook that eats the body                       none: there are no hooks
46        an error in the stream                          wire/test_failures     test_an_error_in_the_stream
47        a stream that stops early                       wire/test_failures     test_a_stream_that_stops_early
48, 49    everything fails                                wire/test_failures     test_when_everything_fails_every_row_says_so
48        and the exit code says so                       cbbench/test_run       test_nothing_succeeded_is_an_invalid_load
50, 51    refusals are misses, by class                   wire/test_failures     test_a_refusal_keeps_its_body
50        and violate the SLA                             reports/test_sla       test_failures_are_violations_and_not_fast_successes
53        a proxy's page                                  wire/test_failures     test_html_from_a_proxy
53        a body that breaks off                          wire/test_failures     test_a_body_that_breaks_off
53        a refusal while the request is being sent       wire/test_bodies       test_a_server_that_refuses_a_large_request_before_it_has_read_it
54        nulls                                           wire/test_failures     test_nulls_from_a_router
55        one corrupt event                               wire/test_failures     test_an_event_that_is_no_chunk
55        one corrupt record                              reports/test_folder    test_a_corrupt_line_costs_one_request
56        percentiles of nothing                          reports/test_metrics   test_an_empty_run_has_no_numbers_and_no_error
58        an absolute schedule                            wire/test_load         test_an_open_loop_keeps_its_rate
59        waiting in the client                           wire/test_load         test_waiting_behind_a_cap_is_in_the_scheduled_latency_only
59        a stall                                         wire/test_processes    test_a_server_process_stopped_for_a_while
60        300 in flight                                   wire/test_load         test_three_hundred_in_flight
61        a slow client                                   wire/test_load         test_a_slow_client_shows_in_its_own_figures
61        is called one                                   reports/test_client    test_each_way_of_not_keeping_up_is_named_with_its_limit
63        a ramp from 0                                   none: there are no ramps
64        less than one request a second                  wire/test_load         test_rates_below_one_a_second_are_rates
65, 66, 68 the first wave and the tail                    reports/test_summary   test_the_steady_window_leaves_out_ramp_and_drain
67        a run of a duration                             wire/test_load         test_a_run_of_a_duration_cancels_what_is_left_and_keeps_its_tokens
67        tokens count where they came                    reports/test_summary   test_tokens_count_in_the_window_where_they_came_not_where_their_request_ended
69        nothing but load in the timed region            engines/remote/test_scrape test_a_page_that_hangs_delays_no_request
70, 86    everything is accounted for                     wire/test_load         test_every_planned_request_is_accounted_for
76, 79    a server that never answers                     wire/test_lifecycle    test_a_server_that_never_answers
77        a worker that dies                              wire/test_processes    test_a_worker_that_dies
77        Ctrl-C while nothing happens                    wire/test_lifecycle    test_stopping_while_the_server_is_silent
78        a lock that a failed turn keeps                 none: turns hold no lock
80        a freeze after the warm-up                      none: it ends before the clock runs
81        partial results                                 wire/test_lifecycle    test_stopping_keeps_what_there_is
81        after a kill                                    reports/test_folder    test_sigkill_leaves_a_readable_folder
82        a keep-alive that ends as we send               wire/test_lifecycle    test_a_kept_connection_that_closes_is_sent_on_again_once
82        a server that never keeps a connection          wire/test_lifecycle    test_a_server_that_never_keeps_what_it_says_it_keeps
82        only once, and only if nothing was heard        wire/test_lifecycle    test_it_is_not_sent_again_once_anything_came_back
83        another server on the port                      cbbench/test_launch    test_another_process_answers
85        statistics in quadratic time                    wire/test_load         test_response_cost_does_not_grow_with_its_length
87        one schema, there and back                      reports/test_folder    test_what_is_written_is_read
88        units in names                                  reports/test_metrics   test_every_latency_has_a_definition
"""  # noqa: E501
