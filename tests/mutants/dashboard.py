"""Mutants of the dashboard's permissions, passwords and limits, and of the audit."""

from tests.mutants.mutant import Mutant

WEB = "outbox/admin/web"
PERMISSIONS = "tests/admin/web/test_permissions.py"
QUOTED = f"{PERMISSIONS}::test_what_errors_quote_of_payloads_needs_that_permission_too"
PASSWORDS = "tests/admin/web/test_passwords.py"
ACTIONS = "tests/admin/web/test_actions.py"
HOSTS = "tests/admin/web/test_hosts.py"
SLOW = "tests/admin/web/test_slow_requests.py"
AUDIT = "tests/telemetry/test_audit.py"
CLI_AUDIT = "tests/cli/test_audit.py"
REDACTION = "tests/destinations/test_redaction.py"

DASHBOARD = [
    Mutant(
        "page-of-a-destination-shows-what-errors-quote",
        f"{WEB}/destination.py",
        "                hide_in_attempts(box.dialect, box.cipher, view.attempts)\n",
        "                pass\n",
        (QUOTED,),
    ),
    Mutant(
        "page-of-an-actor-shows-what-errors-quote",
        f"{WEB}/actor.py",
        "                hide_in_rows(box.dialect, box.cipher, [*view.waiting.events, *view.failed.events])\n",
        "                pass\n",
        (QUOTED,),
    ),
    Mutant(
        "scheduled-events-show-what-errors-quote",
        f"{WEB}/scheduled.py",
        "                hide_in_rows(box.dialect, box.cipher, found.events)\n",
        "                pass\n",
        (QUOTED,),
    ),
    Mutant(
        "curl-command-without-the-permission",
        f"{WEB}/pages.py",
        "            None if content is None else _curl(box, event, content, states),\n",
        "            _curl(box, event, _content(dashboard, event), states),\n",
        ("tests/admin/web/test_views.py::TestTheCurlCommand",),
    ),
    Mutant(
        "queries-of-peewee-do-not-explain-missing-tables",
        "outbox/storage/dialect.py",
        "            with tables_in_use(self.tables):\n                yield\n"
        "        except (peewee.OperationalError, peewee.ProgrammingError) as error:\n"
        "            self.raise_schema_error(error)\n            raise\n",
        "            with tables_in_use(self.tables):\n                yield\n        finally:\n            pass\n",
        ("tests/admin/web/test_views.py::test_every_page_says_what_to_do_if_the_tables_are_missing",),
    ),
    Mutant(
        "tenant-in-the-window-of-all-events",
        "outbox/admin/queries.py",
        "            within = replace(within, tenant_id=given.tenant_id)\n",
        "            pass\n",
        ("tests/admin/test_queries.py::TestWindows::test_a_tenant_and_a_correlation_id_have_a_window_of_their_own",),
    ),
    Mutant(
        "hours-are-forgotten-with-the-minutes",
        "outbox/storage/sql/telemetry.py",
        "{before} AND substr(name, 1, 5) <> 'hour:'\"",
        '{before}"',
        ("tests/admin/test_history.py::test_hours_are_kept_for_longer_than_minutes",),
    ),
    Mutant(
        "permissions-unchecked",
        f"{WEB}/permissions.py",
        "    return permission in request.scope.get(PERMISSIONS_KEY, ())\n",
        "    return True\n",
        (
            f"{PERMISSIONS}::test_an_action_is_refused_unless_its_permission_is_granted",
            f"{PERMISSIONS}::test_buttons_that_a_user_may_not_press_are_not_shown",
            f"{PERMISSIONS}::test_payloads_headers_and_arguments_need_a_permission_of_their_own",
        ),
    ),
    Mutant(
        "permission-of-the-action-unchecked",
        f"{WEB}/actions.py",
        "    csrf.check(request, form)\n    requested = parse_action_request(form)\n"
        "    require(request, needed_for(requested.action))\n",
        "    csrf.check(request, form)\n    requested = parse_action_request(form)\n",
        (f"{PERMISSIONS}::test_an_action_is_refused_unless_its_permission_is_granted",),
    ),
    Mutant(
        "permission-of-a-periodic-action-unchecked",
        f"{WEB}/periodic.py",
        "    require(request, needed_for(action))\n",
        "",
        (f"{PERMISSIONS}::test_an_action_on_a_periodic_job_is_refused_unless_its_permission_is_granted",),
    ),
    Mutant(
        "page-without-a-check-of-its-own",
        f"{WEB}/audit.py",
        '    """List the latest actions of operators."""\n    require(request, VIEW)\n',
        '    """List the latest actions of operators."""\n',
        (f"{PERMISSIONS}::test_every_route_checks_the_permission_itself",),
    ),
    Mutant(
        "dangerous-actions-for-operators",
        f"{WEB}/permissions.py",
        "return ADMIN if action.is_dangerous else OPERATE",
        "return OPERATE",
        (f"{PERMISSIONS}::test_an_action_is_refused_unless_its_permission_is_granted",),
    ),
    Mutant(
        "payloads-for-administrators",
        f"{WEB}/permissions.py",
        "_IMPLIED = {ADMIN: {OPERATE, VIEW}",
        "_IMPLIED = {ADMIN: {OPERATE, VIEW, PAYLOADS}",
        (f"{PERMISSIONS}::test_payloads_headers_and_arguments_need_a_permission_of_their_own",),
    ),
    Mutant(
        "errors-with-payloads-on-the-page-of-an-event",
        f"{WEB}/pages.py",
        "        if not with_content:\n",
        "        if False:\n",
        (QUOTED,),
    ),
    Mutant(
        "errors-with-payloads-on-lists",
        f"{WEB}/pages.py",
        "            if arguments is None:\n",
        "            if False:\n",
        (QUOTED,),
    ),
    Mutant(
        "errors-with-payloads-on-the-overview",
        f"{WEB}/pages.py",
        "            return view if with_content else hide_in_overview(",
        "            return view if True else hide_in_overview(",
        (QUOTED,),
    ),
    Mutant(
        "errors-with-payloads-on-the-page-of-keys",
        f"{WEB}/keys.py",
        "            if not may(request, PAYLOADS):\n",
        "            if False:\n",
        (QUOTED,),
    ),
    Mutant(
        "another-site-stops-and-resumes",
        f"{WEB}/audit.py",
        "    csrf.check(request, form)\n",
        "",
        ("tests/admin/web/test_csrf.py::test_every_form_is_protected",),
    ),
    Mutant(
        "guessing-at-any-speed",
        f"{WEB}/passwords.py",
        "        if self._attempts.wait_seconds(source) > 0:\n            return None\n",
        "",
        (
            f"{PASSWORDS}::test_after_some_wrong_passwords_even_the_right_one_has_to_wait",
            f"{PASSWORDS}::test_while_an_address_waits_nothing_more_is_logged",
        ),
    ),
    Mutant(
        "addresses-without-a-limit",
        f"{WEB}/password_attempts.py",
        "while len(self._wrong) > self._most:",
        "while False:",
        (f"{PASSWORDS}::test_the_memory_for_addresses_is_bounded",),
    ),
    Mutant(
        "known-browsers-slowed-down",
        f"{WEB}/passwords.py",
        'return f"a known browser of {user}" if self._is_known(connection, user) else address_of(connection)',
        "return address_of(connection)",
        (f"{PASSWORDS}::test_a_browser_that_has_signed_in_is_not_slowed_down_by_others_with_its_address",),
    ),
    Mutant(
        "any-cookie-is-a-known-browser",
        f"{WEB}/passwords.py",
        'return user in self._accounts and compare_digest(given.encode(errors="replace"), self._mark(user).encode())',
        "return given",
        (f"{PASSWORDS}::test_wrong_cookies_of_known_browsers_count_for_the_address",),
    ),
    Mutant(
        "short-passwords",
        f"{WEB}/passwords.py",
        "if len(secret) < MIN_PASSWORD_LENGTH:",
        "if False:",
        (
            f"{PASSWORDS}::test_a_short_password_is_an_error_that_says_how_long_and_does_not_show_it",
            f"{PASSWORDS}::test_a_short_token_is_an_error",
        ),
    ),
    Mutant(
        "metrics-token-for-all-pages",
        f"{WEB}/metrics_token.py",
        "self._expected is None or path != PATH or ",
        "self._expected is None or ",
        (f"{PASSWORDS}::test_the_token_reads_the_metrics_and_nothing_else",),
    ),
    Mutant(
        "any-metrics-token",
        f"{WEB}/metrics_token.py",
        'if compare_digest(given.strip().encode(errors="replace"), self._expected.encode()):',
        "if given:",
        (f"{PASSWORDS}::test_any_other_token_is_refused_logged_and_slowed_down",),
    ),
    Mutant(
        "any-proxy-trusted",
        f"{WEB}/forwarded_headers.py",
        "return any(address in network for network in self._trusted)",
        "return True",
        (f"{HOSTS}::test_only_a_trusted_proxy_says_which_address_a_request_comes_from",),
    ),
    Mutant(
        "first-forwarded-address-believed",
        f"{WEB}/forwarded_headers.py",
        "            if not self._trusts(host):\n                break\n",
        "",
        (f"{HOSTS}::test_only_a_trusted_proxy_says_which_address_a_request_comes_from",),
    ),
    Mutant(
        "any-host",
        f"{WEB}/allowed_hosts.py",
        "return host in self._names",
        "return True",
        (f"{HOSTS}::test_only_allowed_hosts_are_served",),
    ),
    Mutant(
        "redirects-to-the-host",
        f"{WEB}/app.py",
        "app.router.redirect_slashes = False",
        "app.router.redirect_slashes = True",
        (f"{HOSTS}::test_no_redirect_leads_to_the_host_of_the_request",),
    ),
    Mutant(
        "requests-without-an-end",
        f"{WEB}/bounded_protocol.py",
        "        self._request_timer = self.loop.call_later(self.request_seconds, transport.abort)\n\n",
        "\n",
        (f"{SLOW}::test_a_request_that_does_not_end_is_closed",),
    ),
    Mutant(
        "second-requests-without-an-end",
        f"{WEB}/bounded_protocol.py",
        "elif self._request_timer is None:",
        "elif False:",
        (f"{SLOW}::test_a_second_request_on_a_connection_is_bounded_as_well",),
    ),
    Mutant(
        "slow-responses-cut-off",
        f"{WEB}/bounded_protocol.py",
        "        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):",
        "        if False:",
        (f"{SLOW}::test_a_response_that_takes_long_is_not_cut_off",),
    ),
    Mutant(
        "unread-responses",
        f"{WEB}/bounded_protocol.py",
        "        if self._unread_timer is None:",
        "        if False:",
        (f"{SLOW}::test_a_client_that_does_not_read_is_closed",),
    ),
    Mutant(
        "connections-without-a-limit",
        f"{WEB}/bounded_protocol.py",
        "if len(self.connections) > self.max_connections:",
        "if False:",
        (f"{SLOW}::test_connections_beyond_the_limit_are_closed_at_once",),
    ),
    Mutant(
        "operator-from-the-environment",
        "outbox/cli/operator.py",
        "    name = user_name(os.getuid())\n",
        '    name = os.environ.get("LOGNAME", "")\n',
        (f"{CLI_AUDIT}::test_the_operating_systems_user_is_the_operator_whatever_the_environment_says",),
    ),
    Mutant(
        "no-ids-in-the-audit",
        "outbox/telemetry/audit.py",
        "dialect.run(dialect.statements.audit_batch, (key, self._batches, json.dumps([str(id) for id in ids])))",
        "pass",
        (f"{AUDIT}::test_the_ids_of_deleted_events_are_kept", f"{CLI_AUDIT}::test_it_prints_the_ids_of_one_action"),
    ),
    Mutant(
        "no-parameters-in-the-audit",
        "outbox/operations/apply_action.py",
        "    parameters = {**action.parameters, **{name",
        "    parameters = {**{name",
        (
            f"{AUDIT}::test_an_entry_has_the_operator_what_was_given_and_how_it_ended",
            f"{CLI_AUDIT}::test_the_destination_of_a_replay_is_in_the_entry",
        ),
    ),
    Mutant(
        "interruptions-without-an-end",
        "outbox/telemetry/audit.py",
        "        entry.interrupt(_cause(error), in_callers_transaction=in_callers_transaction)\n",
        "",
        (f"{AUDIT}::test_an_interrupted_action_ends_as_interrupted_with_what_was_done",),
    ),
    Mutant(
        "audit-that-is-not-logged",
        "outbox/telemetry/audit.py",
        '        logger.info("%s %s: %s, id=%s", self._action, what, text, self._id, extra=extra)\n',
        "",
        (f"{AUDIT}::test_each_entry_is_logged_when_it_begins_and_when_it_ends",),
    ),
    Mutant(
        "actions-that-outlive-the-dashboard",
        f"{WEB}/background_action.py",
        "            if self._stopping.is_set():\n",
        "            if False:\n",
        ("tests/admin/web/test_actions.py::test_an_action_that_is_running_when_the_process_stops_ends_as_interrupted",),
    ),
    Mutant(
        "everything-if-a-redaction-fails",
        "outbox/destinations/redaction.py",
        '            return f"not shown: the redaction of {event_type} raised {type(error).__name__}"\n',
        "            return payload\n",
        (f"{REDACTION}::test_a_function_that_fails_shows_nothing_rather_than_everything",),
    ),
    Mutant(
        "pages-without-redaction",
        f"{WEB}/dashboard.py",
        "return self.box.registry.redactions.displayed(event.event_type, payload)",
        "return payload",
        (f"{REDACTION}::test_the_pages_show_what_it_returns_masked",),
    ),
    Mutant(
        "show-without-redaction",
        "outbox/cli/content.py",
        "payload = box.registry.redactions.displayed(event.event_type, event.payload)",
        "payload = event.payload",
        (f"{REDACTION}::test_outbox_show_applies_it",),
    ),
]
