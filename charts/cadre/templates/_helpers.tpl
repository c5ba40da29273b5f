{{/* Labels of every object. */}}
{{- define "cadre.labels" -}}
app.kubernetes.io/name: cadre
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: cadre
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Image by key and name: (list . "apiServer" "api-server"). */}}
{{- define "cadre.image" -}}
{{- $root := index . 0 -}}
{{- $whole := index $root.Values.images (index . 1) -}}
{{- $tag := $root.Values.images.tag | default $root.Chart.AppVersion -}}
{{- $whole | default (printf "%s/%s:%s" $root.Values.images.repository (index . 2) $tag) -}}
{{- end }}

{{- define "cadre.keySecret" -}}
{{ .Values.auth.existingSecret | default "cadre-api-key" }}
{{- end }}

{{/* Secret with the URL of a PostgreSQL; empty: the record is a SQLite file. */}}
{{- define "cadre.postgres" -}}
{{- if and .Values.postgresql.enabled .Values.apiServer.database.existingSecret -}}
{{- fail "postgresql.enabled and apiServer.database.existingSecret name two databases: choose one" -}}
{{- end -}}
{{- if .Values.postgresql.enabled }}{{ include "cadre.postgresqlSecret" . }}{{ else }}{{ .Values.apiServer.database.existingSecret }}{{ end -}}
{{- end }}
{{- define "cadre.postgresqlSecret" -}}
cadre-postgresql
{{- end }}

{{/* Cluster-scoped objects have the namespace of their release in their names, so that a cluster can hold several. */}}
{{- define "cadre.clusterName" -}}
{{ index . 1 }}.{{ (index . 0).Release.Namespace }}
{{- end }}

{{/* Which namespaces an admission policy is about. */}}
{{- define "cadre.servedNamespaces" -}}
{{- if .Values.clusterWide -}}
namespaceSelector: {}
{{- else -}}
namespaceSelector:
  matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .Values.namespaces }}}
{{- end -}}
{{- end }}

{{/* Security contexts: Pod Security Standard "restricted", read-only root. */}}
{{- define "cadre.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "cadre.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
