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
